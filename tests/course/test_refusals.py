"""What a region may not hold, by name; and that answers of every honest kind pass."""

from __future__ import annotations

import pytest

from tiny_vllm.course import markers
from tiny_vllm.grading.refusals import refused

SKELETON = """import numpy as np
from chapters.ch02_embeddings.stage import THREADS


def f(x):
    # EXERCISE-BEGIN 1.1 (about 1 line): double
    raise NotImplementedError("exercise 1.1 is not solved yet")
    # EXERCISE-END 1.1
"""


@pytest.mark.parametrize(
    "body, named",
    [
        ('#include "ch03_rms_norm/rms_norm.cu"', "#include"),
        ("  #  include <cstdlib>", "include"),
        ("%: include <cstdlib>", "%:"),
        ("??=include <cstdlib>", "??="),
        ("/* */ #define x y", "#define"),
        ("int a; // hidden \\\n", "a backslash at a line's end"),
        ("int a; \\  \n", "a backslash at a line's end"),
        ("#pragma unroll", "#pragma"),
        ('_Pragma("unroll")', "_Pragma"),
        ('asm("nop");', "asm"),
        ('__asm__ volatile("syscall");', "__asm__"),
        ("__attribute__((constructor)) int x;", "__attribute__"),
        ("[[gnu::naked]] int x;", "[["),
        ("[\n[gnu::naked]] int x;", "[\n["),
        ("extern int system(const char*);", "extern"),
        ('std::system("id");', "std"),
        ('::puts("id");', "::"),
        ('auto run = system; run("id");', "system"),
        ("__builtin_trap();", "__builtin_trap"),
        ('const char* s = R"(\n)";', 'R"'),
        ("}\n__global__ void other() {", "a }"),
        ("if (x) {", "a {"),
        ("y[0);", "a )"),
        ("/* swallows the mark", "a comment without an end"),
        ("// EXERCISE-END 3.2\nint x;", "EXERCISE"),
        ("/* // EXERCISE-END 3.2 */", "EXERCISE"),
        ("x = " + "(" * 51 + "1" + ")" * 51 + ";", "brackets more than 50 deep"),
        ("x;" * 4001, "8002 characters, where 8000 are enough"),
    ],
)
def test_cuda_that_is_refused(body, named):
    assert named in refused(body, python=False, skeleton="")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "for (int c = threadIdx.x; c < hidden; c += blockDim.x) { sum += x[c] * x[c]; }  // asm, #include, {",
        'printf("} # :: R asm %d\\n", 3);',
        "/* a { in a comment */ float4 v = reinterpret_cast<const float4*>(x)[0];",
        "y = a ? b : c;",
        "sum = warp_sum(lane < num_warps ? partial[lane] : 0.0f);",
        "float assembled = external_sum, using_all = stdev;",
    ],
)
def test_honest_cuda_passes(body):
    assert refused(body, python=False, skeleton="") == ""


@pytest.mark.parametrize(
    "body, named",
    [
        ("import os", "import os, which the skeleton lacks"),
        ("from chapters.ch03_rms_norm import stage", "import chapters.ch03_rms_norm.stage"),
        ("from chapters.ch02_embeddings.stage import EmbeddingOps", "EmbeddingOps"),
        ("from . import stage", "import ..stage"),
        ("return __import__('os')", "__import__"),
        ("exec('x')", "exec"),
        ("return eval('x')", "eval"),
        ("open('secret')", "open"),
        ("return getattr(np, 'lo' + 'ad')('x')", "getattr"),
        ("return (lambda: 0).__globals__", ".__globals__"),
        ("return ().__class__.__base__.__subclasses__()", ".__"),
        ("return __builtins__", "__builtins__"),
        ("return np.load('x')", ".load"),
        ("return np.lib.npyio", ".lib"),
        ("x.tofile('x')", ".tofile"),
        ("return np.ctypeslib.os", "os"),
        ("g = (i for i in x)\nreturn g.gi_frame", ".gi_frame"),
        ("return 1\nx = 2\nimport sys", "import sys"),
    ],
)
@pytest.mark.parametrize("indent", ["", "    "])
def test_python_that_is_refused(body, named, indent):
    body = "".join(f"{indent}{line}\n" for line in body.splitlines())
    assert named in refused(body, True, SKELETON)


@pytest.mark.parametrize("body", ["    return 1\nimport os\n", "    return 1\nelse:\n    pass\n"])
def test_python_that_leaves_its_function(body):
    assert refused(body, True, SKELETON) == "a line that leaves the function around it"


def test_no_python():
    assert refused("    y = (2 *\n", True, SKELETON).startswith("no Python: ")
    assert "(line 2 of the region)" in refused("    y = 1\n    y = = 2\n", True, SKELETON)


@pytest.mark.parametrize(
    "body",
    ["", "    return 2 * x\n", "    import numpy as np\n    return np.full(THREADS, 2) @ x\n", "    # open, exec\n"],
)
def test_honest_python_passes(body):
    assert refused(body, True, SKELETON) == ""


def test_the_skeletons_own_line_passes():
    assert refused(markers.bodies(SKELETON)["1.1"], True, SKELETON) == ""
