"""A small chapter for the tests of tiny_vllm/course: a warm-up, two kernels, a fault."""
