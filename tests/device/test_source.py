"""The loader of .cu files: which file wins, how headers are inlined, and what it says when one is missing."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tiny_vllm.device import source
from tiny_vllm.errors import UserError


@pytest.fixture
def overlay(tmp_path: Path) -> tuple[Path, ...]:
    folders = tuple(tmp_path / name for name in ("work", "chapters", "kernels"))
    for folder in folders:
        folder.mkdir()
    return folders


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def code_lines(text: str) -> list[tuple[str, int, str]]:
    """(file, line, text) of every line, as a compiler that follows #line counts them."""
    file, number, found = "", 0, []
    for line in text.split("\n"):
        if line.startswith("#line"):
            _, count, name = line.split()
            file, number = name.strip('"'), int(count)
        else:
            found.append((file, number, line))
            number += 1
    return found


def test_the_first_folder_of_the_overlay_wins(overlay):
    for folder in reversed(overlay):
        write(folder, "a.cu", f"int {folder.name};\n")
        text = source.load_source("a.cu", overlay)
        assert text == f'#line 1 "{folder.name}/a.cu"\nint {folder.name};\n'


def test_a_chapter_file_is_named_with_its_folder(overlay):
    write(overlay[1], "ch03/a.cu", "int a;\n")
    assert source.load_source("ch03/a.cu", overlay).startswith('#line 1 "chapters/ch03/a.cu"\n')


def test_every_line_keeps_its_file_and_number(overlay):
    write(overlay[2], "a.cu", 'int a1;\n#include "b.cuh"\nint a3;\n  #  include "c.cuh" // again\nint a5;\n')
    write(overlay[2], "b.cuh", '#pragma once\nint b2;\n#include "c.cuh"\nint b4;')
    write(overlay[2], "c.cuh", "int c1;\n\nint c3;\n")
    lines = [each for each in code_lines(source.load_source("a.cu", overlay)) if each[2]]
    expected = [("a.cu", 1), ("b.cuh", 2), ("c.cuh", 1), ("c.cuh", 3), ("b.cuh", 4), ("a.cu", 3), ("a.cu", 5)]
    assert lines == [(f"kernels/{file}", number, f"int {file[0]}{number};") for file, number in expected]


def test_a_header_beside_the_file_comes_before_one_of_kernels(overlay):
    write(overlay[1], "ch03/a.cu", '#include "h.cuh"\n#include "only_in_kernels.cuh"\n')
    write(overlay[1], "ch03/h.cuh", "int chapter;\n")
    write(overlay[2], "h.cuh", "int wrong;\n")
    write(overlay[2], "only_in_kernels.cuh", "int kernels;\n")
    text = source.load_source("ch03/a.cu", overlay)
    assert "int chapter;" in text and "int kernels;" in text and "wrong" not in text


def test_a_students_file_finds_the_header_that_stayed_in_the_chapter(overlay):
    write(overlay[0], "ch03/a.cu", '#include "h.cuh"\n')
    write(overlay[1], "ch03/h.cuh", "int chapter;\n")
    assert "int chapter;" in source.load_source("ch03/a.cu", overlay)


def test_includes_in_comments_and_system_headers_stay(overlay):
    text = '// #include "no.cuh"\n/*\n#include "no.cuh"\n*/\n#include <cuda_fp16.h>\nconst char* s = "// no comment";\n'
    write(overlay[2], "a.cu", text)
    assert source.load_source("a.cu", overlay) == '#line 1 "kernels/a.cu"\n' + text


def test_a_missing_file_names_the_folders(overlay):
    with pytest.raises(UserError, match=r"no nothing\.cu in work/, chapters/, kernels/"):
        source.load_source("nothing.cu", overlay)


def test_a_missing_header_names_file_and_line(overlay):
    write(overlay[2], "a.cu", '\n#include "b.cuh"\n')
    write(overlay[2], "b.cuh", '\n\n#include "no.cuh"\n')
    with pytest.raises(UserError, match=r'kernels/b\.cuh, line 3: there is no "no\.cuh"'):
        source.load_source("a.cu", overlay)


def test_headers_that_include_each_other(overlay):
    write(overlay[2], "a.cu", '#include "b.cuh"\n')
    write(overlay[2], "b.cuh", '#include "c.cuh"\n')
    write(overlay[2], "c.cuh", '#include "b.cuh"\n')
    with pytest.raises(UserError, match=r"kernels/a\.cu -> kernels/b\.cuh -> kernels/c\.cuh -> kernels/b\.cuh"):
        source.load_source("a.cu", overlay)


def test_a_name_does_not_leave_the_overlay(overlay):
    (overlay[2].parent / "outside.cu").write_text("int secret;")
    with pytest.raises(UserError):
        source.load_source("../outside.cu", overlay)


def test_an_absolute_path(overlay, tmp_path):
    write(tmp_path, "mine/a.cu", '#include "b.cuh"\n#include "k.cuh"\n')
    write(tmp_path, "mine/b.cuh", "int beside;\n")
    write(overlay[2], "k.cuh", "int kernels;\n")
    text = source.load_source(str(tmp_path / "mine/a.cu"), overlay)
    assert "int beside;" in text and "int kernels;" in text


def test_work_can_be_elsewhere(tmp_path, monkeypatch):
    write(tmp_path, "elsewhere/a_students_kernel.cu", "int mine;\n")
    monkeypatch.setenv("TINY_VLLM_WORK", str(tmp_path / "elsewhere"))
    assert source.load_source("a_students_kernel.cu") == '#line 1 "elsewhere/a_students_kernel.cu"\nint mine;\n'


def test_an_installed_package_uses_its_own_kernels(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "tiny_vllm"
    write(package, "kernels/a.cu", "int packaged;\n")
    write(package.parent, "kernels/a.cu", "int another_project;\n")
    monkeypatch.setattr(source, "PACKAGE", package)
    monkeypatch.delenv("TINY_VLLM_WORK", raising=False)
    assert "int packaged;" in source.load_source("a.cu")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.float32, "float"),
        ("float32", "float"),
        (ml_dtypes.bfloat16, "__nv_bfloat16"),
        ("bfloat16", "__nv_bfloat16"),
        (np.dtype("float16"), "__half"),
    ],
)
def test_scalar_options(dtype, expected):
    assert source.scalar_options(dtype) == (f"-DSCALAR={expected}",)


@pytest.mark.parametrize("dtype", [np.float64, "int8", "no such type"])
def test_scalar_options_refuses(dtype):
    with pytest.raises(UserError, match=r"float32, bfloat16 or float16"):
        source.scalar_options(dtype)


@pytest.mark.parametrize(
    ("text", "expected"), [("", 75), ("// requires: sm_80\n", 80), ("// requires: sm_80\n// requires: sm_90a", 90)]
)
def test_required_capability(text, expected):
    assert source.required_capability(text) == expected


@pytest.mark.parametrize(
    ("text", "only", "runs"),
    [
        ("", None, [75, 80, 86, 90, 100]),
        ("// requires: sm_80", None, [80, 86, 90, 100]),
        ("// requires: sm_80, 16-bit SCALAR\n// requires: sm_90", None, [90, 100]),
        ("// requires: sm_90a; HEAD_DIM 64", "90a", [90]),
        ("// requires: sm_90a\n// requires: sm_80", "90a", [90]),
        ("// requires: sm_90a\n// requires: sm_100", "90a", []),
    ],
)
def test_which_devices_run_a_source(text, only, runs):
    assert source.only_architecture(text) == only
    assert [each for each in (75, 80, 86, 90, 100) if source.runs_on(text, each)] == runs


def test_the_name_of_a_source(tmp_path):
    (tmp_path / "a.cu").write_text("int a;\n")
    assert source.source_label(source.load_source("a.cu", [tmp_path])) == f"{tmp_path.name}/a.cu"
    assert source.source_label('int a;\n#line 1 "b.cu"') == "this source"


def test_a_mark_in_front_and_a_text_that_is_no_utf8(tmp_path):
    (tmp_path / "a.cu").write_bytes(b"\xef\xbb\xbfint a;\n")
    (tmp_path / "b.cu").write_bytes(b"// \xff\n")
    assert source.load_source("a.cu", [tmp_path]).split("\n")[1] == "int a;"
    with pytest.raises(UserError, match=r"b\.cu cannot be read: .*; save it as UTF-8 text"):
        source.load_source("b.cu", [tmp_path])


def test_quotes_of_one_character_and_comments_that_go_on():
    text = """char q = '"'; // a "\n// b \\\n c\nint d; /* '"' */"""
    assert source.strip_comments(text).split() == ["char", "q", "=", "'\"';", "int", "d;"]
    assert source.strip_comments(text).count("\n") == text.count("\n")


GAP = "// EXERCISE-BEGIN 3.2 (about 4 lines): add up\n    // your lines\n\n    // EXERCISE-END 3.2\n"


def test_a_file_with_gaps_does_not_silently_stand_in_for_ours(overlay, monkeypatch):
    """A folder that TINY_VLLM_WORK names is the course's business, which runs such files on purpose."""
    monkeypatch.delenv("TINY_VLLM_WORK", raising=False)
    monkeypatch.setattr(source, "default_overlay", lambda: overlay)
    write(overlay[1], "ch03/a.cu", GAP)
    assert "EXERCISE" in source.load_source("ch03/a.cu")
    write(overlay[0], "ch03/a.cu", GAP)
    with pytest.raises(UserError, match=r"work/ch03/a\.cu: exercise 3\.2 is not solved yet.*generate --mine work/"):
        source.load_source("ch03/a.cu")
    monkeypatch.setenv("TINY_VLLM_WORK", str(overlay[0]))
    assert "EXERCISE" in source.load_source("ch03/a.cu")
    monkeypatch.delenv("TINY_VLLM_WORK")
    write(overlay[0], "ch03/a.cu", GAP.replace("// your lines", "sum += 1;"))
    assert "sum += 1;" in source.load_source("ch03/a.cu")
