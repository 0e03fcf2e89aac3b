"""`tiny-vllm fetch`: what it prints, what it fetches, and that it fetches nothing twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_vllm import cli
from tiny_vllm.errors import UserError
from tiny_vllm.models import find, hub, smollm2

ROOT = Path(__file__).resolve().parents[1]
TINY = Path(__file__).parent / "data" / "tiny"


@pytest.fixture(autouse=True)
def empty_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path / "ours"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def fetch(capsys):
    def fetch(*arguments: str) -> tuple[int, str, str]:
        return cli.main(["fetch", *arguments]), *capsys.readouterr()

    return fetch


def no_network(*arguments: object, **options: object) -> Path:
    raise AssertionError("it must not be fetched")


def make_built_in(size: int = 2_400_000) -> Path:
    folder, there = smollm2.find_smollm2()
    assert not there
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(size))
    (folder / smollm2.MARKER).write_text(json.dumps(smollm2._marker({"model.safetensors": size})))
    return folder


def test_the_built_in_model_is_the_default(fetch, monkeypatch):
    monkeypatch.setattr(smollm2, "ensure_smollm2", make_built_in)
    folder, _ = smollm2.find_smollm2()
    assert fetch() == (0, f"{folder}\t2 MB\n", "")


def test_a_model_that_is_there_is_not_fetched_again(fetch, monkeypatch):
    folder = make_built_in()
    monkeypatch.setattr(smollm2, "_make", no_network)
    for name in ([], [hub.BUILT_IN]):
        assert fetch(*name) == (0, f"{folder}\t2 MB\n", "")


def test_a_damaged_one_is_fetched_again(fetch, monkeypatch):
    folder = make_built_in()
    (folder / "model.safetensors").write_bytes(b"short")
    made = []
    monkeypatch.setattr(smollm2, "_make", lambda target, progress: made.append(target))
    assert fetch()[0] == 0 and made == [folder]


def test_where_fetches_and_makes_nothing(fetch, monkeypatch, tmp_path):
    monkeypatch.setattr(smollm2, "_make", no_network)
    monkeypatch.setattr(hub, "_download", no_network)
    assert fetch("--where") == (0, f"{tmp_path}/ours/models/smollm2-135m-instruct\n", "")
    assert fetch("--where", "org/name") == (0, f"{tmp_path}/hub/models--org--name\n", "")
    assert fetch("--where", str(TINY / "tiny")) == (0, f"{TINY}/tiny\n", "")
    assert not (tmp_path / "ours").exists() and not (tmp_path / "hub").exists()


def make_hub_model(hub_folder: Path, source: Path) -> Path:
    """The layout of the hub's cache: a snapshot whose files are links to blobs."""
    repository = hub_folder / "models--org--name"
    snapshot, blobs = repository / "snapshots" / ("c" * 40), repository / "blobs"
    for folder in (snapshot, blobs, repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text("c" * 40)
    for file in source.iterdir():
        (blobs / file.name).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(blobs / file.name)
    return snapshot


@pytest.mark.parametrize("name", ["tiny", "tiny-untied-sharded"])
def test_a_hub_model_that_is_there_needs_no_network(fetch, monkeypatch, tmp_path, name):
    snapshot = make_hub_model(tmp_path / "hub", TINY / name)
    monkeypatch.setattr(hub, "_download", no_network)
    megabytes = sum(file.stat().st_size for file in (TINY / name).iterdir()) / 1e6
    assert fetch("org/name") == (0, f"{snapshot}\t{megabytes:,.0f} MB\n", "")
    assert fetch("--where", "org/name") == (0, f"{snapshot}\n", "")


@pytest.mark.parametrize("missing", ["config.json", "model-00002-of-00003.safetensors"])
def test_a_hub_model_that_came_by_half_is_fetched(fetch, monkeypatch, tmp_path, missing):
    snapshot = make_hub_model(tmp_path / "hub", TINY / "tiny-untied-sharded")
    (snapshot / missing).unlink()
    fetched = []

    def download(hub_id: str) -> Path:
        fetched.append(hub_id)
        return snapshot

    monkeypatch.setattr(hub, "_download", download)
    assert fetch("org/name")[0] == 0 and fetched == ["org/name"]


def test_a_damaged_index_is_no_whole_model(tmp_path):
    snapshot = make_hub_model(tmp_path / "hub", TINY / "tiny-untied-sharded")
    for text in ("{", "[]", '{"weight_map": []}'):
        (snapshot / "model.safetensors.index.json").unlink()
        (snapshot / "model.safetensors.index.json").write_text(text)
        assert find.find_model("org/name") == (snapshot, False)


@pytest.mark.parametrize("name", ["nothing here", "", "a/b/c", "../x", str(TINY / "tiny" / "config.json")])
@pytest.mark.parametrize("where", [[], ["--where"]])
def test_names_that_are_no_model(fetch, monkeypatch, name, where):
    monkeypatch.setattr(hub, "_download", no_network)
    code, out, err = fetch(*where, name)
    assert (code, out) == (2, "") and err.startswith("tiny-vllm: error: ") and err.count("\n") == 1


def test_a_download_that_fails_is_one_sentence(fetch, monkeypatch):
    def fail(target: Path, progress: bool) -> None:
        raise UserError("pip could not fetch it; check the network")

    monkeypatch.setattr(smollm2, "_make", fail)
    assert fetch() == (2, "", "tiny-vllm: error: pip could not fetch it; check the network\n")


def test_offline_as_a_user(tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tiny_vllm", "fetch", "org/no-such-model"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tiny-vllm: error: org/no-such-model cannot be downloaded: it is not in the local")
    assert done.stderr.count("\n") == 1
