"""`tiny-vllm bench table`: the engine beside its peers, row by row, on one machine in one call."""
