"""Which folder a name means, and what a user is told when there is none. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from tiny_vllm.errors import UserError
from tiny_vllm.models import hub, smollm2

RESPONSE: Any = SimpleNamespace(headers={}, request=None)


def answer(monkeypatch: pytest.MonkeyPatch, result: Path | Exception) -> list[tuple[str, dict[str, Any]]]:
    """Let the hub's client return a folder or raise; gives the list of its calls."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def snapshot_download(repo_id: str, **settings: Any) -> str:
        calls.append((repo_id, settings))
        if isinstance(result, Exception):
            raise result
        return str(result)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def error(name: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        hub.resolve_model(name)
    return str(caught.value)


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = answer(monkeypatch, tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert hub.resolve_model(tmp_path) == hub.resolve_model(str(tmp_path)) == tmp_path
    monkeypatch.chdir(tmp_path)
    assert hub.resolve_model("org/name") == Path("org/name")  # a folder goes before a hub id
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.resolve_model("~/org") == tmp_path / "org"
    assert not calls


def test_the_built_in_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "ensure_smollm2", lambda: tmp_path)
    assert hub.resolve_model("smollm2-135m") == tmp_path


def test_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = answer(monkeypatch, tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert hub.resolve_model("meta-llama/Llama-3.2-1B") == tmp_path
    patterns = {"allow_patterns": ["*.safetensors", "*.json", "*.jinja"], "ignore_patterns": ["*/*"]}
    assert calls == [("meta-llama/Llama-3.2-1B", patterns)]


@pytest.mark.parametrize("name", ["llama", "./llama", "a/b/c", "/nowhere/model", "", "org/", "-x/y", Path("org/name")])
def test_neither_folder_nor_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str | Path) -> None:
    monkeypatch.chdir(tmp_path)
    calls = answer(monkeypatch, tmp_path)
    words = error(name)
    assert f"{str(name)!r} is neither a folder nor a hub id such as org/name" in words
    assert "or the built-in model smollm2-135m" in words
    assert not calls


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    assert error(str(file)) == f"{file} is a file; give the folder that holds config.json and the safetensors files"


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (
            errors.GatedRepoError("403", response=RESPONSE),
            "org/name is gated; accept its licence at https://huggingface.co/org/name and set HF_TOKEN to your token",
        ),
        (
            errors.RepositoryNotFoundError("404", response=RESPONSE),
            "neither a folder here nor a model at https://huggingface.co/org/name; if it is private, set HF_TOKEN",
        ),
        (errors.HFValidationError("bad\nname"), "'org/name' is neither a folder nor a hub id (bad name); give a local"),
        (
            errors.LocalEntryNotFoundError("no"),
            "it is not in the local cache, and the hub is out of reach or HF_HUB_OFFLINE",
        ),
        (errors.OfflineModeIsEnabled("no"), "give a local model folder, or the built-in model smollm2-135m"),
        (ConnectionResetError("no"), "the hub is out of reach"),
        (
            errors.HfHubHTTPError("500 Server\n Error", response=RESPONSE),
            "org/name cannot be downloaded: 500 Server Error;",
        ),
        (
            OSError(28, "No space left on device"),
            "org/name cannot be downloaded: [Errno 28] No space left on device; try",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_downloads_that_fail(monkeypatch: pytest.MonkeyPatch, raised: Exception, words: str) -> None:
    answer(monkeypatch, raised)
    message = error("org/name")
    assert words in message and "\n" not in message


def test_a_repository_without_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, tmp_path)
    (tmp_path / "config.json").touch()
    assert error("org/name").startswith("https://huggingface.co/org/name holds no safetensors files; give a model")


def test_offline_the_real_client_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call stands in for the client here: offline, with an empty cache, it must not reach for the network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert "is not in the local cache" in error("org/name")
