"""`tiny-vllm doctor`: one made-up machine for each thing that goes wrong on a user's, and the sentence for it."""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import pytest

from tiny_vllm import cli
from tiny_vllm.doctor import CHECKS, Check, Status, compilers, cuda, cupy_packages, examine, folders, kernel, system
from tiny_vllm.doctor.finding import Finding, note, ok, pip, problem
from tiny_vllm.doctor.machine import Driver, Gpu, Machine, ask_nvidia_smi, mount_of
from tiny_vllm.doctor.report import Privacy, as_json, as_markdown, line, verdict
from tiny_vllm.errors import DeviceError, KernelError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
T4, H200 = Gpu("Tesla T4", 75, 15_000, 15_360), Gpu("NVIDIA H200", 90, 140_000, 143_771)
V100 = Gpu("Tesla V100", 70, 16_000, 16_384)
CUDA_13 = Driver("580.65.06", (H200,))
PIP = pip("")


def machine(driver: Driver | None = None, packages: dict[str, str] | None = None, **facts: Any) -> Machine:
    """A machine with these facts in place of its own; they are cached properties, set before they are asked for."""
    made = Machine()
    vars(made).update({"driver": driver, "packages": packages or {}, "cupy": None, **facts})
    return made


def found(finding: Finding | None) -> tuple[str, str, str | None]:
    assert finding is not None
    return finding.status.value, finding.sentence, finding.command


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


# ---- the table


def test_every_check_is_a_row_and_none_raises_here(capsys):
    findings = list(examine())
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert {each.check for each in findings} <= set(names)
    assert not [each for each in findings if "failed itself" in each.sentence]
    for each in findings:  # one sentence, one line
        assert "\n" not in each.sentence and not each.sentence.endswith(".") and "\n" not in (each.command or "")
    assert capsys.readouterr() == ("", "")


def test_a_check_that_fails_itself_becomes_a_line():
    def broken(machine: Machine) -> Finding:
        return ok(str({}["driver"]))  # type: ignore[index]

    def refused(machine: Machine) -> Finding:
        raise DeviceError("TINY_VLLM_WORKERS is 'many'; give a whole number")

    rows = (Check("one", broken), Check("two", refused), Check("three", lambda machine: ok("fine")))
    assert [(*found(each), each.check) for each in examine(machine(), rows)] == [
        ("note", "this check failed itself (KeyError: 'driver'); please report it", "tiny-vllm doctor --report", "one"),
        ("PROBLEM", "TINY_VLLM_WORKERS is 'many'; give a whole number", None, "two"),
        ("OK", "fine", None, "three"),
    ]


@pytest.mark.parametrize(
    ("side", "driver", "chosen", "cuda_error", "status"),
    [
        ("all", None, "auto", "no GPU", "PROBLEM"),
        ("cuda", None, "auto", "no GPU", "note"),
        ("cuda", None, "cuda", "no GPU", "PROBLEM"),
        ("cuda", CUDA_13, "auto", "broken", "PROBLEM"),
        ("cuda", CUDA_13, "emulator", "broken", "note"),
        ("emulator", None, "auto", "no GPU", "PROBLEM"),
        ("emulator", CUDA_13, "auto", "broken", "PROBLEM"),
        ("emulator", CUDA_13, "auto", None, "note"),
        ("emulator", CUDA_13, "emulator", None, "PROBLEM"),
    ],
)
def test_a_fault_counts_only_where_that_side_is_needed(monkeypatch, side, driver, chosen, cuda_error, status):
    monkeypatch.setenv("TINY_VLLM_DEVICE", chosen)
    rows = (Check("x", lambda machine: problem("broken"), side),)
    [finding] = examine(machine(driver, cuda_error=cuda_error), rows)
    assert finding.status.value == status


# ---- Python and the system


def test_an_old_python(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(platform, "python_version", lambda: "3.9.2")
    assert found(system.check_python(machine())) == (
        "PROBLEM", "Python 3.9.2 is older than 3.10", "make PYTHON=python3.11 install",
    )  # fmt: skip


def test_packages_that_are_missing(monkeypatch):
    whole = importlib.util.find_spec
    missing = ("numpy", "tqdm")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else whole(name))
    assert found(system.check_packages(machine())) == (
        "PROBLEM", "Python packages are missing: numpy, tqdm", f"{PIP}install numpy tqdm",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("system_name", "cpu", "release", "status", "words"),
    [
        ("Linux", "x86_64", "6.1.0-13-amd64", "OK", "Linux on x86_64"),
        ("Linux", "aarch64", "6.1.0", "note", "under QEMU, not on a chip"),
        ("Linux", "x86_64", "5.15.153.1-microsoft-standard-WSL2", "note", "NVIDIA's driver belongs into Windows"),
        ("Linux", "x86_64", "4.4.0-19041-Microsoft", "note", "WSL 1"),
        ("Linux", "riscv64", "6.1.0", "note", "riscv64: not tried"),
        ("Darwin", "arm64", "23.5.0", "note", "has not been run there"),
        ("Windows", "AMD64", "11", "PROBLEM", "WSL2"),
    ],
)
def test_systems(monkeypatch, tmp_path, system_name, cpu, release, status, words):
    (tmp_path / "osrelease").write_text(release + "\n")
    monkeypatch.setattr(system, "_KERNEL_RELEASE", tmp_path / "osrelease")
    monkeypatch.setattr(platform, "system", lambda: system_name)
    monkeypatch.setattr(platform, "machine", lambda: cpu)
    finding = system.check_system(machine())
    assert finding.status.value == status and words in finding.sentence


def test_little_memory(monkeypatch):
    from tiny_vllm.device.emulator import Emulator

    monkeypatch.setattr(Emulator, "memory_info", lambda self: (400_000_000, 8_000_000_000))
    status, sentence, _ = found(system.check_memory(machine()))
    assert (status, sentence) == (
        "note",
        "0.4 of 8.0 GB of memory are free, and the built-in model takes about 1 GB",
    )


def test_a_setting_that_is_wrong(monkeypatch):
    monkeypatch.setenv("TINY_VLLM_WORKERS", "many")
    [finding] = examine(machine(), (Check("settings", system.check_settings),))
    assert finding.status is Status.PROBLEM and finding.sentence.startswith("TINY_VLLM_WORKERS is 'many'")


# ---- conda


@pytest.fixture
def conda(monkeypatch, tmp_path) -> Path:
    """This Python is the one of a conda environment."""
    (tmp_path / "conda-meta").mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


def test_a_conda_environment_that_is_not_activated(monkeypatch, conda):
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    assert found(system.check_conda(machine())) == (
        "PROBLEM",
        f"this is the Python of the conda environment {conda}, which is not activated: CuPy may not find CUDA",
        f"conda activate {conda}",
    )


def test_another_conda_environment_is_active(monkeypatch, conda):
    monkeypatch.setenv("CONDA_PREFIX", "/opt/conda")
    status, sentence, command = found(system.check_conda(machine()))
    assert status == "PROBLEM" and "while /opt/conda is the active one" in sentence
    assert command == f"conda activate {conda}"
    monkeypatch.setenv("CONDA_PREFIX", str(conda))
    assert found(system.check_conda(machine()))[0] == "OK"


def test_no_conda(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert system.check_conda(machine()) is None


def test_cupy_that_fails_for_want_of_conda_prefix(monkeypatch, conda):
    """CuPy 14.0: a traceback that ends in 'NoneType' object has no attribute 'startswith'."""
    from tiny_vllm.device import cupy_setup

    error = AttributeError("'NoneType' object has no attribute 'startswith'")

    def fail() -> None:
        raise error

    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: types.SimpleNamespace(origin="cupy/__init__.py"))
    monkeypatch.setattr(cupy_setup, "import_cupy", fail)
    made = machine(CUDA_13, {"cupy": "14.0.0"})
    del vars(made)["cupy"]  # let it be imported
    assert found(cuda.check_cupy_import(made)) == (
        "PROBLEM",
        "CuPy cannot be imported ('NoneType' object has no attribute 'startswith'): the conda environment is not "
        "activated",
        f"conda activate {conda}",
    )


# ---- the compiler and the emulator


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    from tiny_vllm.device.emulator import compiler

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TINY_VLLM_CXX", raising=False)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    compiler._find.cache_clear()


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ({"ID": "debian"}, "sudo apt install g++"),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "sudo apt install g++"),
        ({"ID": "rhel", "ID_LIKE": "fedora"}, "sudo dnf install gcc-c++"),
        ({"ID": "nixos"}, f"{PIP}install ziglang"),
    ],
)
def test_no_compiler(monkeypatch, no_compiler, release, command):
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    assert found(compilers.check_compiler(machine())) == ("PROBLEM", "no C++ compiler found", command)


def test_a_chosen_compiler_that_is_not_there(monkeypatch):
    monkeypatch.setenv("TINY_VLLM_CXX", "no-such-compiler -O3")
    assert found(compilers.check_compiler(machine())) == (
        "PROBLEM", "TINY_VLLM_CXX is 'no-such-compiler -O3', and there is no such program", "unset TINY_VLLM_CXX",
    )  # fmt: skip


def test_a_compiler_without_its_headers(monkeypatch, no_compiler, tmp_path):
    """g++ is there, the C library's headers are not."""
    message = "/usr/include/stdlib.h:95: fatal error: bits/types.h: No such file or directory"
    body = f'case "$1" in --version) echo "g++ (Debian) 12.2.0";; *) echo "{message}" >&2; exit 1;; esac'
    script(tmp_path / "g++", body)
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "debian"})
    assert found(compilers.check_emulator(machine())) == (
        "PROBLEM",
        f"a kernel does not run on the emulator: the kernel does not compile: {message}",
        "sudo apt install g++",
    )


def test_a_compiler_that_gives_wrong_numbers(monkeypatch):
    monkeypatch.setattr(kernel, "ADD_ONE", kernel.ADD_ONE.replace("1.0f", "2.0f"))
    assert kernel.run_kernel("emulator") == "the kernel ran and gave wrong numbers"


def test_a_cache_from_which_nothing_can_be_loaded(monkeypatch, tmp_path):
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path))
    monkeypatch.setattr(compilers, "run_kernel", lambda name: "failed to map segment from shared object")
    monkeypatch.setattr(compilers, "mount_of", lambda path: ("ext4", frozenset({"rw", "noexec"})))
    status, sentence, command = found(compilers.check_emulator(machine()))
    assert status == "PROBLEM" and sentence.startswith(f"{tmp_path} is on a disk mounted noexec")
    assert command == f"export TINY_VLLM_CACHE={tempfile.gettempdir()}/tiny-vllm-{os.geteuid()}"


# ---- caches and disks

CACHES = [
    (folders.check_cache, "TINY_VLLM_CACHE", "kernels are compiled anew in every process and no model is kept"),
    (folders.check_cupy_cache, "CUPY_CACHE_DIR", "CuPy compiles every kernel anew in every process"),
]


@pytest.mark.parametrize(("check", "variable", "consequence"), CACHES)
def test_caches(monkeypatch, tmp_path, check, variable, consequence):
    has_cupy = machine(packages={"cupy-cuda13x": "14.2.0"})
    monkeypatch.setenv(variable, str(tmp_path / "a" / "b"))
    assert found(check(has_cupy)) == ("OK", f"{tmp_path}/a/b can be written", None)
    assert list(tmp_path.iterdir()) == []  # looking makes nothing
    (tmp_path / "file").touch()
    monkeypatch.setenv(variable, str(tmp_path / "file" / "cache"))
    elsewhere = f"export {variable}={tempfile.gettempdir()}/tiny-vllm-{os.geteuid()}"
    assert found(check(has_cupy)) == (
        "note", f"{tmp_path}/file/cache cannot be written (Not a directory): {consequence}", elsewhere,
    )  # fmt: skip


@pytest.mark.parametrize(("check", "variable", "consequence"), CACHES)
@pytest.mark.parametrize("number", [errno.EROFS, errno.EDQUOT, errno.ENOSPC, errno.EACCES])
def test_a_home_that_is_read_only_over_quota_or_full(monkeypatch, tmp_path, check, variable, consequence, number):
    def refuse(dir: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(folders.tempfile, "TemporaryFile", refuse)
    status, sentence, command = found(check(machine(packages={"cupy-cuda13x": "14.2.0"})))
    assert (status, sentence) == ("note", f"{tmp_path} cannot be written ({os.strerror(number)}): {consequence}")
    assert command is not None and command.startswith(f"export {variable}=")


@pytest.mark.parametrize(("check", "variable", "consequence"), CACHES)
def test_a_cache_on_a_network_disk(monkeypatch, tmp_path, check, variable, consequence):
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(folders, "mount_of", lambda path: ("nfs4", frozenset({"rw"})))
    status, sentence, command = found(check(machine(packages={"cupy-cuda13x": "14.2.0"})))
    assert (status, sentence) == (
        "note",
        f"{tmp_path} is on a network disk (nfs4): slow, and its file locks may not hold",
    )
    assert command is not None and command.startswith(f"export {variable}=")


def test_a_cache_that_belongs_to_another_user(monkeypatch, tmp_path):
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    monkeypatch.setattr(folders, "why_not_writable", lambda folder: PermissionError(13, "Permission denied"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4711)
    assert found(folders.check_cache(machine()))[2] == f'sudo chown -R "$(id -u)" {tmp_path}'


def test_the_disk_of_a_path(tmp_path):
    table = tmp_path / "mounts"
    table.write_text(
        "/dev/sda1 / ext4 rw,relatime 0 0\n"
        "server:/home /home nfs4 rw,hard 0 0\n"
        "tmpfs /home/x\\040y tmpfs rw,noexec 0 0\n"
    )
    assert mount_of(Path("/usr/lib"), table) == ("ext4", frozenset({"rw", "relatime"}))
    assert mount_of(Path("/home/somebody/.cache"), table) == ("nfs4", frozenset({"rw", "hard"}))
    assert mount_of(Path("/homework"), table)[0] == "ext4"
    assert mount_of(Path("/home/x y/z"), table) == ("tmpfs", frozenset({"rw", "noexec"}))
    assert mount_of(Path("/usr"), tmp_path / "none") == ("", frozenset())


def test_a_full_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path))
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=500_000_000))
    status, sentence, command = found(folders.check_disk(machine()))  # 200 MB of kernels, 470 MB while it converts
    assert status == "note" and command is not None and "TINY_VLLM_CACHE" in command
    assert sentence == f"{tmp_path} has 500 MB free, and kernels and the built-in model take 670 MB"


def test_the_built_in_model(monkeypatch, tmp_path):
    from tiny_vllm.models import smollm2

    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path))
    absent = ("note", "the built-in model is not there yet (93 MB to fetch)", "tiny-vllm fetch")
    assert found(folders.check_model(machine())) == absent
    folder = tmp_path / "models" / smollm2.FOLDER
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(3_000_000))
    marker = smollm2._marker({"model.safetensors": 3_000_000})
    (folder / smollm2.MARKER).write_text(json.dumps(marker))
    assert found(folders.check_model(machine())) == ("OK", f"the built-in model is in {folder} (3 MB)", None)
    (folder / "model.safetensors").write_bytes(bytes(2_999_999))
    status, sentence, command = found(folders.check_model(machine()))
    assert (status, command) == ("note", "tiny-vllm fetch") and "is damaged" in sentence


# ---- driver and GPU


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "echo '580.65.06, 9.0, 143000, 143771, NVIDIA H200'; echo '580.65.06, 7.5, 10, 15360, Tesla T4, odd'",
            Driver("580.65.06", (Gpu("NVIDIA H200", 90, 143000, 143771), Gpu("Tesla T4, odd", 75, 10, 15360))),
        ),
        ("echo '580.65.06, 8.6, [N/A], [N/A], GeForce'", Driver("580.65.06", (Gpu("GeForce", 86, 0, 0),))),
        ("echo; echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
         Driver(error="Failed to initialize NVML: Driver/library version mismatch")),
        ("echo 'no devices' >&2; exit 6", Driver(error="no devices")),
        ("exit 9", Driver(error="exit code 9")),
        ("echo 'No devices were found'", Driver()),
    ],
)  # fmt: skip
def test_what_nvidia_smi_says(tmp_path, body, expected):
    assert ask_nvidia_smi(script(tmp_path / "nvidia-smi", body)) == expected


def test_an_nvidia_smi_that_never_answers(monkeypatch):
    def wait(command: Any, timeout: float, **rest: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", wait)
    driver = ask_nvidia_smi("nvidia-smi")
    assert "timed out after 20 seconds" in driver.error


def test_the_driver_is_looked_for_in_path(monkeypatch, tmp_path):
    script(tmp_path / "nvidia-smi", "echo '535.1, 8.9, 1, 2, L4'")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Machine().driver == Driver("535.1", (Gpu("L4", 89, 1, 2),))


@pytest.mark.parametrize(
    ("driver", "status", "words", "command"),
    [
        (None, "note", "there is no NVIDIA driver (no nvidia-smi): kernels run on the emulator", None),
        (Driver(error="Driver/library version mismatch"), "note", "nvidia-smi fails: Driver/library", "sudo reboot"),
        (Driver(), "note", "shows no GPU", "nvidia-smi -L"),
        (Driver("470.1", (T4,)), "note", "470.1 is older than CUDA 12 needs (525)", None),
        (Driver("525.60.13", (T4,)), "OK", "525.60.13 runs programs of CUDA 12", None),
        (Driver("579.9", (T4,)), "OK", "CUDA 12", None),
        (Driver("580.65.06", (T4,)), "OK", "CUDA 13", None),
    ],
)
def test_drivers(driver, status, words, command):
    finding = cuda.check_driver(machine(driver))
    assert (finding.status.value, finding.command) == (status, command) and words in finding.sentence


@pytest.mark.parametrize(
    ("gpus", "status", "sentence"),
    [
        ((H200,), "OK", "NVIDIA H200, compute capability 9.0"),
        ((H200, T4), "OK", "NVIDIA H200, compute capability 9.0, the first of 2"),
        ((T4,), "note", "Tesla T4, compute capability 7.5: it has no bfloat16, so models run in float16"),
        ((V100,), "PROBLEM", "Tesla V100, compute capability 7.0: kernels need 7.5 (Turing) or newer"),
    ],
)
def test_gpus(gpus, status, sentence):
    assert found(cuda.check_gpu(machine(Driver("580.1", gpus))))[:2] == (status, sentence)


def test_gpu_memory_that_a_notebook_holds():
    """Notebook kernels that were restarted and never ended: the doctor names the command that shows who holds it."""
    assert found(cuda.check_gpu_memory(machine(Driver("580.1", (Gpu("L4", 89, 312, 23_034),))))) == (
        "note",
        "312 of 23034 MiB of the GPU's memory are free: another process holds the rest, such as a notebook's kernel",
        "nvidia-smi",
    )
    assert found(cuda.check_gpu_memory(machine(CUDA_13)))[0] == "OK"
    assert cuda.check_gpu_memory(machine()) is None


# ---- CuPy's packages

BOUNDS = ">=14,!=14.1.0,<15"
INSTALL_13 = f'{PIP}install "cupy-cuda13x{BOUNDS}" "cuda-toolkit[cublas,cudart,nvrtc]==13.*"'
INSTALL_12 = INSTALL_13.replace("13", "12")


def test_the_bounds_are_those_of_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for number in (12, 13):
        cupy, cuda_toolkit = extras[f"cuda{number}"]
        assert f'install "{cupy}" "{cuda_toolkit}"' in cupy_packages.install(number)


@pytest.mark.parametrize(
    ("driver", "packages", "expected"),
    [
        (None, {}, ("OK", "CuPy is not installed, and without a GPU nothing needs it", None)),
        (CUDA_13, {}, ("note", "CuPy is not installed: the GPU is not used", INSTALL_13)),
        (Driver("535.1", (T4,)), {}, ("note", "CuPy is not installed: the GPU is not used", INSTALL_12)),
        (CUDA_13, {"cupy-cuda13x": "14.2.0"}, ("OK", "cupy-cuda13x 14.2.0", None)),
        (CUDA_13, {"cupy-cuda12x": "14.0.1"}, ("OK", "cupy-cuda12x 14.0.1", None)),
        (CUDA_13, {"cupy": "14.2.0"}, ("OK", "cupy 14.2.0", None)),
        (
            CUDA_13,
            {"cupy-cuda13x": "14.1.0"},
            ("PROBLEM", "cupy-cuda13x 14.1.0 needs pytest at run time",
             f'{PIP}install --upgrade "cupy-cuda13x{BOUNDS}"'),
        ),
        (
            CUDA_13,
            {"cupy-cuda12x": "13.6.0"},
            ("PROBLEM", "cupy-cuda12x 13.6.0 is older than 14, which finds CUDA's headers and libraries by itself",
             f'{PIP}install --upgrade "cupy-cuda12x{BOUNDS}"'),
        ),
        (
            CUDA_13,
            {"cupy-cuda13x": "15.0.0a1"},
            ("note", "cupy-cuda13x 15.0.0a1 is newer than any that was tried (14)",
             f'{PIP}install --upgrade "cupy-cuda13x{BOUNDS}"'),
        ),
        (
            CUDA_13,
            {"cupy-cuda11x": "13.6.0"},
            ("PROBLEM", "cupy-cuda11x is for a CUDA older than 12", f"{PIP}uninstall -y cupy-cuda11x && {INSTALL_13}"),
        ),
        (
            Driver("535.1", (T4,)),
            {"cupy-cuda13x": "14.2.0"},
            ("PROBLEM", "cupy-cuda13x needs driver 580 or newer, and this one is 535.1",
             f"{PIP}uninstall -y cupy-cuda13x && {INSTALL_12}"),
        ),
        (
            CUDA_13,
            {"cupy-cuda12x": "14.2.0", "cupy-cuda13x": "14.2.0"},
            ("PROBLEM", "2 packages bring CuPy and write over each other's files: cupy-cuda12x 14.2.0 and "
             "cupy-cuda13x 14.2.0", f"{PIP}uninstall -y cupy-cuda12x cupy-cuda13x && {INSTALL_13}"),
        ),
        (CUDA_13, {"cupy-chol": "0.1.5", "cupy-xarray": "0.1"},
         ("note", "CuPy is not installed: the GPU is not used", INSTALL_13)),
    ],
)  # fmt: skip
def test_cupy_packages(driver, packages, expected):
    assert found(cupy_packages.check_cupy(machine(driver, packages))) == expected


def test_pips_cupy_beside_condas(conda):
    packages = {"cupy": "14.2.0", "cupy-cuda12x": "13.6.0"}
    _, _, command = found(cupy_packages.check_cupy(machine(CUDA_13, packages)))
    assert command == f"{PIP}uninstall -y cupy-cuda12x && conda install --force-reinstall cupy"


def test_packages_are_read_from_their_metadata(monkeypatch):
    class Package:
        def __init__(self, name: str | None, version: str) -> None:
            self.metadata, self.version = {"Name": name}, version

    names = [("CuPy_CUDA12x", "13.6.0"), ("cupy-cuda13x", "14.2.0"), (None, "1"), ("cupy.cuda13x", "9"), ("numpy", "2")]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [Package(*each) for each in names])
    assert Machine().cupy_packages == {"cupy-cuda12x": "13.6.0", "cupy-cuda13x": "14.2.0"}


def test_cupy_beside_a_cuda_core_of_another_cuda():
    packages = {"cupy-cuda12x": "14.2.0", "cuda-core": "0.4.1", "cuda-bindings": "13.0.3", "cuda-toolkit": "12.9.1"}
    assert found(cupy_packages.check_other_cuda(machine(CUDA_13, packages))) == (
        "PROBLEM",
        "cupy-cuda12x stands beside cuda-bindings 13.0.3 (and cuda-core 0.4.1): CuPy takes the first CUDA that it "
        "finds",
        f"{PIP}uninstall -y cuda-bindings && "
        f'{PIP}install --upgrade "cuda-toolkit[cublas,cudart,nvrtc]==12.*" "cuda-core[cu12]"',
    )


@pytest.mark.parametrize(
    ("packages", "named"),
    [
        ({"cupy-cuda12x": "14.2.0", "nvidia-cuda-nvrtc": "13.0.88"}, "nvidia-cuda-nvrtc 13.0.88"),
        ({"cupy-cuda13x": "14.2.0", "cuda-toolkit": "12.9.1"}, "cuda-toolkit 12.9.1"),
        ({"cupy-cuda13x": "14.2.0", "cuda-toolkit": "13.1.0", "nvidia-cuda-nvrtc-cu12": "12.8.93"}, None),
        ({"cupy-cuda12x": "14.2.0", "cuda-toolkit": "12.9.1", "cuda-core": "0.4.1", "cuda-bindings": "12.9.4"}, None),
        ({"cupy-cuda12x": "14.2.0", "nvidia-cuda-nvrtc-cu12": "12.9.86", "cuda-pathfinder": "1.3.4"}, None),
    ],
)
def test_other_cuda_packages(packages, named):
    status, sentence, _ = found(cupy_packages.check_other_cuda(machine(CUDA_13, packages)))
    assert status == ("PROBLEM" if named else "OK") and (named or "every CUDA package") in sentence


# ---- headers, NVRTC, the kernel on the GPU


@pytest.fixture
def toolkit(monkeypatch, tmp_path):
    """A machine with an H200, CuPy 14.2, and these headers and this compiler."""

    def toolkit(headers: int | None, nvrtc: Any = (13, 2), without: str = "") -> Machine:
        folder = tmp_path / "include"
        folder.mkdir()
        for name in cuda.HEADERS:
            if name != without:
                (folder / name).write_text(f"#define CUDART_VERSION  {headers}\n")
        where = None if headers is None else str(folder)
        pathfinder = types.SimpleNamespace(find_nvidia_header_directory=lambda name: where)
        monkeypatch.setitem(sys.modules, "cuda", types.SimpleNamespace(pathfinder=pathfinder))
        monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)

        def version() -> tuple[int, int]:
            if isinstance(nvrtc, Exception):
                raise nvrtc
            return nvrtc

        (tmp_path / "cupy").mkdir()
        cupy = types.SimpleNamespace(
            __file__=str(tmp_path / "cupy" / "__init__.py"),
            __version__="14.2.0",
            cuda=types.SimpleNamespace(nvrtc=types.SimpleNamespace(getVersion=version)),
        )
        return machine(CUDA_13, {"cupy-cuda13x": "14.2.0"}, cupy=cupy)

    return toolkit


TOOLKIT_13 = f'{PIP}install --force-reinstall "cuda-toolkit[cudart,nvrtc]==13.*"'


def test_headers_that_fit(toolkit, tmp_path):
    made = toolkit(13020)
    assert found(cuda.check_headers(made)) == (
        "OK", f"CUDA's headers are of version 13.2, from {tmp_path}/include", None,
    )  # fmt: skip
    assert found(cuda.check_nvrtc(made)) == ("OK", "CUDA's compiler (NVRTC) is of version 13.2", None)


@pytest.mark.parametrize("name", ["vector_types.h", "cuda_bf16.h", "cuda_fp16.h"])
def test_a_header_that_is_missing(toolkit, tmp_path, name):
    assert found(cuda.check_headers(toolkit(13020, without=name))) == (
        "PROBLEM", f"CUDA's headers are missing from {tmp_path}/include: {name}", TOOLKIT_13,
    )  # fmt: skip


def test_no_headers_at_all(toolkit):
    status, sentence, command = found(cuda.check_headers(toolkit(None)))
    assert (status, command) == ("PROBLEM", TOOLKIT_13)
    assert sentence.startswith("CUDA's headers are missing in every place that CuPy searches: vector_types.h, ")


def test_headers_of_another_cuda_than_the_compiler(toolkit, tmp_path):
    assert found(cuda.check_headers(toolkit(12090))) == (
        "PROBLEM",
        f"CUDA's headers are of version 12.9 ({tmp_path}/include), its compiler is of 13.2",
        TOOLKIT_13,
    )


def test_half_precision_headers_of_two_cudas(toolkit, tmp_path):
    """What CuPy up to 13 did: `no instance of overloaded function "__half::__half"`."""
    made = toolkit(12090, nvrtc=(12, 9))
    vars(made)["packages"] = {"cupy-cuda12x": "13.6.0"}
    for version in ("11.8", "12.2"):
        bundled = tmp_path / "cupy" / "_core" / "include" / "cupy" / "_cuda" / f"cuda-{version}"
        bundled.mkdir(parents=True)
        (bundled / "cuda_fp16.h").touch()
    assert found(cuda.check_headers(made)) == (
        "PROBLEM",
        f"CuPy brings its own cuda_fp16.h of CUDA 12.2, and cuda_bf16.h is of CUDA 12.9 ({tmp_path}/include): mixed "
        "headers do not compile",
        f'{PIP}install --upgrade "cupy-cuda12x{BOUNDS}"',
    )


def test_no_nvrtc(toolkit):
    error = RuntimeError("CuPy failed to load libnvrtc.so.13: OSError: cannot open shared object file\nmore")
    assert found(cuda.check_nvrtc(toolkit(13020, nvrtc=error))) == (
        "PROBLEM",
        "CUDA's compiler (NVRTC) cannot be loaded: CuPy failed to load libnvrtc.so.13: OSError: cannot open shared "
        "object file",
        TOOLKIT_13,
    )


def test_without_cupy_the_gpus_rows_are_silent():
    for check in (cuda.check_headers, cuda.check_nvrtc, cuda.check_cuda_kernel, cuda.check_cublas):
        assert check(machine(CUDA_13)) is None
    assert cuda.check_cupy_import(machine(CUDA_13)) is None


def test_a_kernel_that_does_not_run_on_the_gpu(toolkit, monkeypatch):
    made = toolkit(13020)
    vars(made)["cuda_error"] = "CUDA's headers are missing; pip install cuda-toolkit"
    assert found(cuda.check_cuda_kernel(made)) == (
        "PROBLEM",
        "a kernel does not run on the GPU: CUDA's headers are missing; pip install cuda-toolkit",
        "pip install cuda-toolkit",
    )
    assert cuda.check_cublas(made) is None
    vars(made)["cuda_error"] = None
    assert found(cuda.check_cuda_kernel(made))[0] == "OK"
    monkeypatch.setattr(kernel, "run_gemm", lambda: "cuBLAS is not installed; pip install x")
    assert found(cuda.check_cublas(made))[0] == "PROBLEM"


def test_gpu_kernel_and_cublas_on_a_gpu(request):
    if request.config.getoption("--device") != "cuda":
        pytest.skip("needs --device cuda")
    for check in (cuda.check_cuda_kernel, cuda.check_cublas, cuda.check_headers, cuda.check_nvrtc):
        assert found(check(Machine()))[0] == "OK"


def test_an_error_of_a_kernel_becomes_a_sentence(monkeypatch):
    import tiny_vllm.device

    def fail(name: str) -> None:
        raise KernelError("the kernel does not compile:\n  add_one.cu:1: error: no\n  more")

    monkeypatch.setattr(tiny_vllm.device, "get_device", fail)
    assert kernel.run_kernel("cuda") == "the kernel does not compile: add_one.cu:1: error: no"
    assert kernel.run_gemm() == "the kernel does not compile: add_one.cu:1: error: no"


# ---- what is printed


FINDINGS = [
    Finding(Status.OK, "fine", None, "python"),
    Finding(Status.NOTE, "/home/ada/x", "tiny-vllm fetch", "model"),
]


def test_lines_and_the_verdict():
    assert line(FINDINGS[0]) == "OK      python        fine"
    assert line(FINDINGS[1]) == "note    model         /home/ada/x\n                      -> tiny-vllm fetch"
    assert verdict(FINDINGS) == "What is needed to run is here."
    assert verdict([problem("a"), problem("b"), ok("c")]) == "2 problems: the line below each one mends it."


def test_json():
    assert json.loads(as_json([*FINDINGS, problem("broken", "mend")])) == {
        "version": cli.__version__,
        "ok": False,
        "findings": [
            {"check": "python", "status": "OK", "sentence": "fine", "command": None},
            {"check": "model", "status": "note", "sentence": "/home/ada/x", "command": "tiny-vllm fetch"},
            {"check": "", "status": "PROBLEM", "sentence": "broken", "command": "mend"},
        ],
    }


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("/home/ada/.cache/tiny-vllm is bad", "~/.cache/tiny-vllm is bad"),
        ("/home/ada", "~"),
        ("/home/ada2/x and /home/ada.bak", "/home/<user>/x and /home/<user>"),
        ("/Users/grace/x", "/Users/<user>/x"),
        ("/scratch/ada/cache, /data/adam", "/scratch/<user>/cache, /data/adam"),
        ("/mnt/homes/ada/y", "~/y"),
        ("Canada", "Canada"),
    ],
)
def test_a_report_names_neither_home_nor_user(text, cleaned):
    assert Privacy(("/mnt/homes/ada", "/home/ada"), "ada").clean(text) == cleaned


def test_a_home_at_the_root_takes_no_slash_away(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert Privacy.of_this_user().homes == ()


def test_a_report_is_a_block_with_our_variables_and_no_others(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("TINY_VLLM_CACHE", "/home/ada/cache")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    text = as_markdown(FINDINGS)
    assert text.startswith("```text\ntiny-vllm ") and text.endswith("\n```")
    assert "TINY_VLLM_CACHE=~/cache" in text and "note    model         ~/x" in text
    assert not re.search(r"ada|secret", text)


@pytest.mark.parametrize(("finding", "code"), [(ok("x"), 0), (note("x"), 0), (problem("x", "mend"), 1)])
@pytest.mark.parametrize("form", [[], ["--report"], ["--json"]])
def test_exit_codes(monkeypatch, capsys, finding, code, form):
    monkeypatch.setattr("tiny_vllm.doctor.examine", lambda: iter([finding]))
    assert cli.main(["doctor", *form]) == code
    out, err = capsys.readouterr()
    assert "x" in out and err == ""


def test_a_user_without_a_compiler_and_a_home(tmp_path):
    """As a user would: the whole command in a process of its own."""
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path / "none" / "home"), "TMPDIR": str(tmp_path)}
    (tmp_path / "none").touch()  # nothing can be made below a file
    (tmp_path / "ziglang.py").write_text("raise ImportError")
    command = [sys.executable, "-m", "tiny_vllm", "doctor", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    rows = {row["check"]: row for row in json.loads(done.stdout)["findings"]}
    if importlib.util.find_spec("ziglang") is None:
        assert done.returncode == 1 and rows["compiler"]["sentence"] == "no C++ compiler found"
    assert rows["cache"]["status"] == "note" and "(Not a directory)" in rows["cache"]["sentence"]
    assert not [row for row in rows.values() if "failed itself" in row["sentence"]]
