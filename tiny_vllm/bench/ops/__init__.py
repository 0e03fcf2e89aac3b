"""`tiny-vllm bench ops`: the operations of a step, each on its own."""
