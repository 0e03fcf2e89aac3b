"""What is installed: requirements, the wheel, the Makefile's help, the workflow's rules."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import tiny_vllm
from tiny_vllm.device.source import load_source

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def pins(requirements: list[str]) -> dict[str, str]:
    """{normalised name: sorted version specifiers}."""
    parsed = [Requirement(text) for text in requirements]
    return {r.name.lower().replace("_", "-"): ",".join(sorted(str(r.specifier).split(","))) for r in parsed}


def test_the_package_says_the_version_of_pyproject():
    assert tiny_vllm.__version__ == PROJECT["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == PROJECT["version"] and citation["license"] == PROJECT["license"]


def third_party_imports() -> set[str]:
    """Top-level names that tiny_vllm imports and neither Python nor we supply."""
    found: set[str] = set()
    for path in (ROOT / "tiny_vllm").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"tiny_vllm"}


def test_every_import_is_declared_and_every_requirement_imported():
    # The code asks before it imports these, or runs in a notebook, where they are
    by_extra = {"cupy", "cupyx", "cuda", "cupy_backends", "matplotlib", "IPython", "PIL", "nbconvert", "nbformat"}
    assert {name.replace("_", "-") for name in third_party_imports() - by_extra} == set(pins(PROJECT["dependencies"]))


# ---- environment.yml


def conda_pins() -> dict[str, str]:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    return pins([entry for entry in environment["dependencies"] if isinstance(entry, str)])


def test_conda_environment_has_the_pins_of_pyproject():
    extras = PROJECT["optional-dependencies"]
    wanted = pins([*PROJECT["dependencies"], *extras["notebooks"], *extras["test"]])
    wanted = {name: spec for name, spec in wanted.items() if name != "tomli"}  # for Python 3.10 only
    cupy = pins(extras["cuda13"])["cupy-cuda13x"]
    wanted |= {"python": PROJECT["requires-python"], "cupy": cupy}
    found = conda_pins()
    only_conda = {"pip", "cxx-compiler", "cuda-version"}
    assert {name: spec for name, spec in found.items() if name not in only_conda} == wanted
    assert only_conda <= set(found)


def test_both_cuda_extras_pin_one_cupy_and_their_own_toolkit():
    extras = PROJECT["optional-dependencies"]
    twelve, thirteen = pins(extras["cuda12"]), pins(extras["cuda13"])
    assert twelve["cupy-cuda12x"] == thirteen["cupy-cuda13x"]
    assert (twelve["cuda-toolkit"], thirteen["cuda-toolkit"]) == ("==12.*", "==13.*")


def test_linters_are_pinned_exactly():
    lint = pins(PROJECT["optional-dependencies"]["lint"])
    assert all(spec.startswith("==") for name, spec in lint.items() if not name.startswith("types-"))


# ---- the wheel


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", *map(str, arguments), "--no-deps", "--quiet", "--disable-pip-version-check"]
    subprocess.run(command, check=True, timeout=120)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_the_engine_and_nothing_else(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"tiny_vllm", f"tiny_vllm-{PROJECT['version']}.dist-info"}
    assert "tiny_vllm/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    emulator = [p.relative_to(ROOT).as_posix() for p in (ROOT / "tiny_vllm/device/emulator").rglob("*.[hc]*")]
    kernels = [f"tiny_vllm/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "kernels").glob("*.cu*")]
    missing = {name for name in [*kernels, *emulator] if "__pycache__" not in name} - set(names)
    assert kernels and emulator and not missing
    assert not any("__pycache__" in name for name in names)


RUN_A_KERNEL = """
import numpy as np, tiny_vllm
from tiny_vllm.device import get_device
import tiny_vllm
from tiny_vllm.device.source import load_source, scalar_options
assert tiny_vllm.__file__.startswith(TARGET), tiny_vllm.__file__
device, source = get_device("emulator"), load_source("silu_mul.cu")
gate_up = np.array([[-2.0, 0.5, 3.0, 7.0, -1.0, 0.25]], np.float32)
out = device.asarray(np.full((1, 3), np.nan, np.float32))
kernel = device.RawKernel(source, "silu_mul", scalar_options(np.float32))
kernel((1, 1), (32,), (device.asarray(gate_up), out, 3))
gate, up = gate_up[:, :3], gate_up[:, 3:]
np.testing.assert_allclose(device.to_host(out), gate / (1 + np.exp(-gate)) * up, rtol=1e-5)
print(len(source))
"""


def test_installed_wheel_runs_a_kernel_far_from_the_checkout(wheel: Path, tmp_path: Path):
    target, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip("install", "--no-compile", "--target", target, wheel)
    assert (target / "tiny_vllm/kernels/silu_mul.cu").is_file()
    code = RUN_A_KERNEL.replace("TARGET", repr(str(target)))
    environment = {**os.environ, "PYTHONPATH": str(target)}
    environment.pop("TINY_VLLM_WORK", None)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 200


def test_the_checkout_comes_before_an_installed_copy():
    assert '#line 1 "kernels/silu_mul.cu"' in load_source("silu_mul.cu")


# ---- Makefile


def make(*arguments: str | Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run make as a reader does: not as part of the `make test` that runs us; `path` comes first in PATH."""
    inherited = ("MAKE", "MFLAGS", "EXTRA", "VENV", "PYTHON")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(inherited)}
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        ["make", *map(str, arguments)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_make_help_lists_every_target():
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony is not None
    assert [line.split()[1] for line in make("help").stdout.splitlines()] == phony[1].split()
    targets = re.findall(r"^([a-z-]+):(?!=)", MAKEFILE, re.MULTILINE)
    assert sorted(targets) == sorted(phony[1].split())


@pytest.mark.parametrize(
    ("nvidia_smi", "extra"),
    [
        ("exit 9", "none"),
        ("echo 'NVIDIA-SMI has failed'; exit 9", "none"),
        ("echo '| NVIDIA-SMI 535.1  Driver Version: 535.1  CUDA Version: 12.2 |'", "cuda12"),
        ("echo '| NVIDIA-SMI 580.1  Driver Version: 580.1  CUDA Version: 13.0 |'", "cuda13"),
        ("echo '| NVIDIA-SMI 470.1  Driver Version: 470.1  CUDA Version: 11.4 |'", "none"),
    ],
)
def test_make_picks_the_extra_by_the_driver(nvidia_smi: str, extra: str, tmp_path: Path):
    script(tmp_path / "nvidia-smi", nvidia_smi)
    shown = make("-n", "install", f"VENV={tmp_path}/venv", path=tmp_path).stdout
    suffix = "" if extra == "none" else f"[{extra}]"
    assert f"GPU extra: {extra}" in shown and f"-e '.{suffix}'" in shown


def test_make_refuses_an_extra_that_it_does_not_know():
    done = make("-n", "install", "EXTRA=cuda11")
    assert done.returncode == 2 and "EXTRA is cuda11; it can be none, cuda12 or cuda13" in done.stderr


@pytest.mark.parametrize(
    ("fails", "says"), [("-c", "needs Python 3.10 or newer"), ("-m", "sudo apt install python3-venv")]
)
def test_make_says_what_python_lacks(fails: str, says: str, tmp_path: Path):
    python = script(tmp_path / "python3", f'case "$1" in {fails}) exit 1;; esac')
    done = make("install", f"PYTHON={python}", f"VENV={tmp_path}/venv")
    assert done.returncode == 2 and says in done.stdout
    assert not (tmp_path / "venv").exists()


def test_make_never_puts_a_cuda_13_compiler_beside_cuda12(tmp_path: Path):
    shown = make("-n", "dev", "EXTRA=cuda12", f"VENV={tmp_path}/venv").stdout
    (installed,) = re.findall(r"-e '\.\[([a-z0-9,]+)\]'", shown)
    assert "cuda12" in installed.split(",") and not {"nvrtc", "dev", "cuda13"} & set(installed.split(","))


# ---- CI


def workflow() -> dict[Any, Any]:
    return yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))


def steps(job: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


def test_ci_script_lints_and_tests():
    path = ROOT / ".ci/run"
    text = path.read_text(encoding="utf-8")
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in text
    assert re.findall(r"^make (\S+)$", text, re.MULTILINE) == ["lint", "test", "test-notebooks", "book"]


def test_the_cpu_job_runs_on_every_push_and_pull_request():
    flow = workflow()
    triggers = flow[True]  # YAML 1.1 reads the key `on` as true
    assert {"push", "pull_request", "workflow_dispatch"} == set(triggers)
    cpu = flow["jobs"]["cpu"]
    assert cpu["runs-on"] == "ubuntu-latest" and "if" not in cpu
    assert "bash .ci/run" in steps(cpu)


def test_no_pull_request_reaches_the_gpu():
    gpu = workflow()["jobs"]["gpu"]
    assert gpu["runs-on"] == ["self-hosted", "gpu"]
    conditions = [part.strip(" ()") for part in gpu["if"].split("||")]
    assert conditions == [
        "github.event_name == 'workflow_dispatch'",
        "github.event_name == 'push' && github.ref == 'refs/heads/main'",
    ]
    assert "pytest --device cuda" in steps(gpu)


def test_the_workflow_may_only_read_and_its_actions_are_pinned():
    flow = workflow()
    assert flow["permissions"] == {"contents": "read"}
    for job in flow["jobs"].values():
        assert "permissions" not in job
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/none@v1"))
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False
    assert "secrets." not in (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
