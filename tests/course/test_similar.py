"""Which regions are alike."""

from __future__ import annotations

from tiny_vllm.grading.submission import Submission
from tiny_vllm.grading.windows import pairs

ONE = """    int half = blockDim.x / 2;
    while (half > 0) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
        half = half / 2;
    }
"""
COPIED = ONE.replace("half", "s").replace("int s", "int   s  // mine\n").replace("s = s / 2;", "s = s / 2;  // halve")
OTHER = """    for (int k = 1; k < blockDim.x; k *= 2) {
        float right = threadIdx.x % (2 * k) == 0 && threadIdx.x + k < blockDim.x ? partial[threadIdx.x + k] : 0.0f;
        __syncthreads();
        partial[threadIdx.x] = partial[threadIdx.x] + right;
        __syncthreads();
    }
"""
# a line that the file gives to everybody
GIVEN = "    for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += x[(size_t)blockIdx.x * columns + c];\n"


def test_the_same_with_other_names_is_alike_and_another_way_is_not(small, work, write):
    file, handed_in = f"{small.name}/sums.cu", []
    for student, body in {
        "ada": ONE,
        "bob": OTHER,
        "eve": COPIED,
        "kim": f"{GIVEN}    a = b;\n",
        "lee": f"{GIVEN}    if (c) d();\n",
        "nobody": "",
    }.items():
        write("42.3", body)
        handed_in.append(Submission(student, {file: (work / file).read_text("utf-8")}))
    handed_in.append(Submission("broken", {file: "// EXERCISE-BEGIN 42.3"}))
    [(exercise, one, other, share)] = pairs([small], handed_in)
    assert (exercise, one, other, share) == ("42.3", "ada", "eve", 1.0)
