"""Modules that stand in for a peer: they answer at once, and fail as they are told."""

from __future__ import annotations

from pathlib import Path

VLLM = '''
"""A stand-in for vLLM: FAKE_VLLM says what goes wrong, at a call of several prompts or while it is loaded."""
import os
import subprocess
import sys
import time
from types import SimpleNamespace

__version__ = "0.0.fake"
FAULT = os.environ.get("FAKE_VLLM", "")


class SamplingParams:
    def __init__(self, *, temperature, max_tokens, ignore_eos, detokenize):
        self.max_tokens = max_tokens


class LLM:
    def __init__(self, *, model, max_model_len, gpu_memory_utilization, enable_prefix_caching, **rest):
        print("a line on standard output that is no reply")
        assert os.path.isdir(model) and not enable_prefix_caching and 0 < gpu_memory_utilization < 1
        if FAULT == "load":
            raise RuntimeError("no room for the cache\\nand more lines")
        if FAULT == "helper":
            helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
            print("helper", helper.pid, flush=True)

    def generate(self, prompts, params, use_tqdm):
        if len(prompts) == 3 and FAULT == "crash":
            print("the last words of a kernel", flush=True)
            os.abort()
        if len(prompts) == 3 and FAULT == "raise":
            raise ValueError("a batch of 3 is too much")
        if len(prompts) == 3 and FAULT == "hang":
            time.sleep(100)
        time.sleep(0.001 * max(each.max_tokens for each in params))
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[0] * each.max_tokens)]) for each in params]
'''


def write_vllm(folder: Path) -> None:
    """vllm, and the torch that it names a version of, importable from `folder`."""
    for name, text in (("vllm", VLLM), ("torch", '__version__ = "9.9.fake"\n')):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(text, encoding="utf-8")
