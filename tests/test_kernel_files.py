"""What a reader finds in the files of kernels/: at the head the bytes and a measured time, and no long function."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

KERNELS = sorted((Path(__file__).parents[1] / "kernels").glob("*.cu*"))
MOST_LINES = 60
FUNCTION = re.compile(r"^(?: {4})?(?:extern|template|__device__|__global__)[^;{]*\{.*?^(?: {4})?\}", re.M | re.S)


def head_of(text: str) -> str:
    """The comment that a file begins with, in one line."""
    lines = itertools.takewhile(lambda line: line.startswith("//"), text.splitlines())
    return " ".join(line.removeprefix("//").strip() for line in lines)


@pytest.mark.parametrize("file", [each for each in KERNELS if each.suffix == ".cu"], ids=lambda file: file.name)
def test_the_head_says_bytes_and_what_was_measured(file: Path) -> None:
    head = head_of(file.read_text())
    assert re.search(r"\b(Bytes|Floor): ", head), "how many bytes must it move?"
    assert "H200" in head and re.search(r"\d[\d,.]* (us|TB/s|TFLOP/s)", head), "and how long does it take?"


@pytest.mark.parametrize("file", KERNELS, ids=lambda file: file.name)
def test_no_function_is_long(file: Path) -> None:
    lengths = {each[0].partition("(")[0]: each[0].count("\n") + 1 for each in FUNCTION.finditer(file.read_text())}
    assert not {name: length for name, length in lengths.items() if length > MOST_LINES}


def test_a_long_function_is_seen() -> None:
    long = 'extern "C" __global__ void f(int* x) {\n' + "    x[0] = 1;\n" * MOST_LINES + "}\n"
    assert [each[0].count("\n") + 1 for each in FUNCTION.finditer(long)] == [MOST_LINES + 2]
