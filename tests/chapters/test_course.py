"""tiny_vllm.course finds the chapters by path; the chapters run as programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tiny_vllm.course as course
from tiny_vllm.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "data" / "tiny" / "tiny-odd"


def test_the_course_set_is_chapter_09s(device, shape):
    ops = course.load_course_ops(device, shape, np.float32)
    assert (ops.name, type(ops).__name__, type(ops).__module__) == ("course", "PagedAttentionOps", course.LAST_STAGE)


def test_it_is_found_from_any_folder(tmp_path):
    """Even beside another package called chapters."""
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters" / "__init__.py").write_text("")
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.path.insert(0, ''); import tiny_vllm.course as c"
    program += "; c.import_chapters(); import chapters; print(chapters.__file__)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == ROOT / "chapters" / "__init__.py"


def test_without_a_checkout_the_way_out_is_named(device, shape, monkeypatch):
    monkeypatch.setattr(course, "checkout_root", lambda: None)
    with pytest.raises(UserError, match="clone the repository"):
        course.load_course_ops(device, shape, np.float32)


def run_chapter(name: str, *arguments: str, device: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"chapters.{name}", "Hello, tiny world!", "--device", device, *arguments]
    env = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, encoding="utf-8", check=False)


@pytest.mark.parametrize("name", ["ch08_first_token", "ch09_kv_cache"])
def test_a_chapter_speaks(device, name):
    done = run_chapter(name, "--model", str(TINY), "--max-tokens", "3", "--dtype", "float32", device=device.name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Hello, tiny world!")
    assert "chapter 08, no cache: 3 tokens" in done.stderr
    assert ("chapter 09, KV cache: 3 tokens" in done.stderr) == (name == "ch09_kv_cache")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model", "/no/such/model"], "neither a folder"),
        (["--model", str(TINY), "--max-tokens", "0"], "--max-tokens is 0; give at least 1"),
        (["--model", str(TINY), "--max-tokens", "99999"], "exceed the model's 2048"),
    ],
)
def test_a_mistake_is_one_sentence(device, arguments, message):
    done = run_chapter("ch08_first_token", *arguments, device=device.name)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
