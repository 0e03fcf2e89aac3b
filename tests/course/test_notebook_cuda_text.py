"""Finding functions in CUDA text: comments, strings, nested braces, names that end alike."""

from __future__ import annotations

import pytest

from tiny_vllm.course.notebook.cuda_text import blanked, function, functions
from tiny_vllm.errors import UserError

CODE = """\
// chapters/x.cu: not a function } {
#include "dtype.cuh"

// Adds. It ends in a brace: }
// A second line.
__device__ float add(float a, float b) { return a + b; }

// Declared ahead.
__device__ float ahead(float a);

/* A block
   of words */
extern "C" __global__ void __launch_bounds__(256) k_tree(const float* x,  // (n,) with )
                                                     int n) {
    if (n > 0) { printf("}{ %d", n); }
    for (int i = 0; i < n; i++) { }
}
extern "C" __global__ void k_warp(float* y) { y[0] = add(1, 2); }
"""


def test_functions_are_found_with_the_comments_above_them():
    found = {each.name: each.text(CODE) for each in functions(CODE)}
    assert list(found) == ["add", "k_tree", "k_warp"]
    assert found["add"].startswith("// Adds. It") and found["add"].endswith("{ return a + b; }")
    assert found["k_tree"].startswith("/* A block") and found["k_tree"].endswith("{ }\n}")
    assert found["k_warp"].startswith('extern "C"')


def test_a_name_may_be_short_where_one_function_ends_so():
    assert function(CODE, "tree").name == "k_tree"
    with pytest.raises(UserError, match="no functions are called 'ladder' in this file; it has add, k_tree, k_warp"):
        function(CODE, "ladder")
    twice = CODE + "void other_tree() {}\n"
    with pytest.raises(UserError, match="2 functions"):
        function(twice, "tree")


def test_blanked_text_keeps_its_places():
    assert blanked('a // b\n"c{" d') == "a     \n     d"
    assert len(blanked(CODE)) == len(CODE) and blanked(CODE).count("\n") == CODE.count("\n")


def test_an_open_brace_is_named_by_its_line():
    with pytest.raises(UserError, match=r"line 2: this '\{' is never closed"):
        functions("int a;\nvoid f() { if (1) { }\n")
