"""`tiny-vllm generate --mine FOLDER`: a student's files in the finished engine, and what is told of a crash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_vllm.course import markers

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "data" / "tiny" / "tiny"
KERNEL, STAGE = "ch03_rms_norm/rms_norm.cu", "ch03_rms_norm/stage.py"


def generate(*arguments: str, device: str = "emulator") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tiny_vllm", "generate", "Hello", "--max-tokens", "4", "--model", str(MODEL)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [*command, "--device", device, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


@pytest.fixture
def mine(tmp_path):
    """A work folder with the worked file of chapter 03, changed."""

    def make(file: str, change):
        path = tmp_path / "work" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "chapters" / file, path)
        path.write_text(change(path.read_text("utf-8")), "utf-8")
        return str(tmp_path / "work")

    return make


def replaced(old: str, new: str):
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


def test_unsolved_regions_are_the_courses(mine, device):
    plain = generate("--ops", "course", device=device.name)
    done = generate("--mine", mine(KERNEL, lambda text: markers.skeleton(text, python=False)), device=device.name)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert f"yours         {KERNEL}, but for 3.2" in done.stderr and "not solved yet, the course's\n" in done.stderr
    assert "the course's  ch04_rope/rope.cu\n" in done.stderr


def test_a_file_that_the_model_does_not_run_is_told_apart(mine, device):
    done = generate("--mine", mine("ch00_hello_gpu/hello.cu", lambda text: text), device=device.name)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith(("yours ", "the course's "))]
    listed = {line.split()[-1] for line in lines[:-1]}
    assert {KERNEL, STAGE, "ch09_kv_cache/write_kv.cu", "ch14_paged_attention/paged_attention.cu"} <= listed
    assert not listed & {"ch05_gemm/gemm.cu", "ch06_attention/attention.cu", "ch03_rms_norm/figures.py"}
    assert lines[-1] == "yours         ch00_hello_gpu/hello.cu (no part of the model)"


def test_a_students_kernel_runs(mine, device):
    """Zeros in the place of every norm: every logit is 0, and the first token wins."""
    kernel = mine(KERNEL, lambda text: text.replace("* scale *", "* 0.0f *"))
    done = generate("--mine", kernel, device=device.name)
    assert done.returncode == 0, done.stderr
    assert f"yours         {KERNEL}\n" in done.stderr
    assert done.stdout != generate("--ops", "course", device=device.name).stdout


def test_a_students_python_runs_and_its_error_is_one_sentence(mine, device):
    stage = mine(STAGE, replaced("        _check_threads(rung, threads)\n", "        print(no_such_name)\n"))
    done = generate("--mine", stage, device=device.name)
    assert done.returncode == 1 and f"yours         {STAGE}\n" in done.stderr
    error, place = done.stderr.splitlines()[-1].split(" (")
    assert error == "tiny-vllm: error: NameError: name 'no_such_name' is not defined"
    number = Path(stage, STAGE).read_text("utf-8").splitlines().index("        print(no_such_name)") + 1
    assert place == f"{STAGE.rpartition('/')[2]}, line {number}: print(no_such_name))"
    assert "Traceback" not in done.stderr


def test_a_crash_is_one_sentence(mine, device):
    abort = "        import os; os.abort()\n"
    done = generate(
        "--mine", mine(STAGE, replaced("        _check_threads(rung, threads)\n", abort)), device=device.name
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("tiny-vllm: error: the process that ran it was ended by SIGABRT")


def test_a_compilers_error_names_the_file(mine, device):
    kernel = mine(KERNEL, replaced("sum / hidden", "sun / hidden"))
    done = generate("--mine", kernel, device=device.name)
    assert done.returncode == 1 and "ch03_rms_norm/rms_norm.cu" in done.stderr and "sun" in done.stderr


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--mine", "nowhere"], "--mine nowhere: there is no such folder; `tiny-vllm course start 3` writes work/"),
        (["--mine", "tests", "--ops", "reference"], "leave one of them out"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, words):
    done = generate(*arguments)
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1
