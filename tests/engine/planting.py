"""Faults planted in a copy of the package: one change of text each, so that the code itself holds no switches."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Fault:
    """old -> new in `module`, a file of tiny_vllm; killed_by: the tests of tests/`file` that notice, as for -k."""

    name: str
    module: str
    old: str
    new: str
    file: str
    killed_by: str


def copy_with(folder: Path, *faults: Fault) -> None:
    """The package, its kernels, chapters and tests in `folder`, with the faults in it."""
    ignored = shutil.ignore_patterns("__pycache__", "data")
    for name in ("tiny_vllm", "kernels", "chapters", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)  # what makes it a checkout, whose kernels run
    (folder / "tests" / "data").symlink_to(ROOT / "tests" / "data")
    for fault in faults:
        module = folder / "tiny_vllm" / fault.module
        source = module.read_text(encoding="utf-8")
        assert source.count(fault.old) == 1, "the code has changed: plant this fault anew"
        module.write_text(source.replace(fault.old, fault.new), encoding="utf-8")


def outcome(folder: Path, file: str, chosen: str, device: str) -> subprocess.CompletedProcess[str]:
    """Run the chosen tests of one file in a copy."""
    options = ["-q", "-x", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider", "--import-mode=importlib"]
    options += ["-o", "pythonpath=.", "-o", "markers=deep", "-m", "not deep", "--device", device, "-k", chosen]
    command = [sys.executable, "-m", "pytest", *options, f"tests/{file}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180)


def check_unplanted(folder: Path, faults: list[Fault], file: str, device: str) -> None:
    """In a copy without a fault, all tests of `file` that are to find one pass."""
    copy_with(folder)
    chosen = " or ".join(fault.killed_by.partition(" ")[0] for fault in faults if fault.file == file)
    run = outcome(folder, file, chosen, device)
    assert run.returncode == 0, run.stdout + run.stderr


def check_found(folder: Path, fault: Fault, device: str) -> None:
    """The test that is to find the fault does."""
    copy_with(folder, fault)
    run = outcome(folder, fault.file, fault.killed_by, device)
    # 1: a test failed; below 0: the copy wrote where it may not, and died of it
    assert run.returncode == 1 or run.returncode < 0, f"{fault.killed_by} does not notice: {run.stdout}{run.stderr}"
