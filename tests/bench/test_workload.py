"""The workloads that figures are quoted for, and what a run says."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import DATA
from tiny_vllm import cli
from tiny_vllm.bench.throughput import Result
from tiny_vllm.bench.workload import nano_vllm, uniform

TINY = str(DATA / "tiny" / "tiny")


def test_the_numbers_of_nano_vllms_bench():
    """Its random.seed(0), in its order of draws."""
    work = nano_vllm()
    assert (len(work.prompts), work.num_prompt_tokens, work.num_output_tokens) == (256, 142_827, 133_966)
    lengths = [len(prompt) for prompt in work.prompts]
    assert min(lengths) >= 100 and max(lengths) <= 1024 and work.longest == 2011
    assert max(max(prompt) for prompt in work.prompts) <= 10_000
    [first, *_] = work.params()
    assert (first.temperature, first.ignore_eos, first.max_tokens) == (0.6, True, work.output_lens[0])


def test_a_uniform_workload():
    work = uniform(3, 5, 7, top_id=20)
    assert [len(prompt) for prompt in work.prompts] == [5, 5, 5] and work.output_lens == [7, 7, 7]
    assert work.longest == 12 and all(0 <= token <= 20 for prompt in work.prompts for token in prompt)


def test_the_floor():
    result = Result(10.0, 2, 300, 500, 40, 1, weight_bytes=1000, bandwidth=10_000.0)
    assert (result.output_tokens_per_second, result.total_tokens_per_second) == (50, 80)
    assert result.floor_seconds == 4
    text = str(result)
    for piece in ("50 output tokens/s", "40 steps, 1 preemptions", "250.00 ms a step", "40% of the time"):
        assert piece in text


def bench(capsys: Any, request: Any, *arguments: str) -> tuple[int, str, str]:
    device = request.config.getoption("--device")
    code = cli.main(["bench", *arguments, "--model", TINY, "--device", device, "--dtype", "float32"])
    return code, *capsys.readouterr()


def test_throughput_from_the_command_line(capsys, request):
    code, out, _ = bench(
        capsys, request, "throughput", "--num-prompts", "5", "--workload", "uniform", "--output-len", "6", "--json"
    )
    found = json.loads(out)
    assert code == 0
    expected = {"num_requests": 5, "num_prompt_tokens": 160, "num_output_tokens": 30, "kind": "throughput"}
    assert expected.items() <= found.items()
    assert 6 <= found["num_steps"] <= 8 and found["output_tokens_per_second"] > 0


def test_latency_from_the_command_line(capsys, request):
    code, out, _ = bench(capsys, request, "latency", "--batch-size", "3", "--output-len", "4", "--enforce-eager")
    assert code == 0
    assert "3 requests, 96 tokens in, 12 out" in out and "graphs 0" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("throughput", "--num-prompts", "0"), "--num-prompts is 0; give at least 1"),
        (("latency", "--output-len", "4000"), "the longest request has 4032 tokens and max_model_len is 2048"),
        (("throughput", "--gpu-memory-utilization", "1.5"), "gpu_memory_utilization is 1.5"),
        (("power",), "invalid choice: 'power'"),
    ],
)
def test_mistakes(capsys, request, arguments, message):
    code, out, err = bench(capsys, request, *arguments)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def test_a_small_vocabulary_bounds_the_ids():
    from tiny_vllm.cli_bench import _workload

    arguments: Any = SimpleNamespace(kind="throughput", workload="nano-vllm", num_prompts=4, seed=0)
    assert max(max(prompt) for prompt in _workload(arguments, 300).prompts) < 300
