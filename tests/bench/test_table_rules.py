"""Rows, verdicts, floors and formulas of the table, against figures worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import DATA
from tiny_vllm.bench.table.ceilings import Ceilings
from tiny_vllm.bench.table.contenders.base import Contender, Setup
from tiny_vllm.bench.table.floors import Model, floor, head_rows, layer_rows, work
from tiny_vllm.bench.table.known import KNOWN, known
from tiny_vllm.bench.table.measure import Sample, each_figure, figure, sample, warm_up
from tiny_vllm.bench.table.rows import STANDARD, TableRow, parse_row
from tiny_vllm.bench.table.verdict import judge, ratio
from tiny_vllm.bench.workload import nano_vllm
from tiny_vllm.errors import UserError
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.shapes import SHAPES

LLAMA = Model(SHAPES["llama-3.2-1b"], 2)
# Round figures: 4 TB/s, 1,000 TFLOP/s; products of all layers and of the head by rows, in seconds
CEILINGS = Ceilings(
    copy=4e12,
    read=4.1e12,
    flops=1e15,
    layers={64: 0.8e-3, 256: 1e-3, 4000: 10e-3, 8192: 20e-3},
    head={1: 0.1e-3, 32: 0.15e-3, 64: 0.2e-3, 256: 0.25e-3},
)


# ---- verdicts


@pytest.mark.parametrize(
    ("ours", "vllm", "best", "target", "expected"),
    [
        (1.0, 1.5, 1.38, 0.69, "PASS, target missed"),
        (0.69, 1.5, 1.38, 0.69, "PASS, target met"),
        (1.4, 1.5, 1.38, 0.69, "FAIL, target missed"),  # ahead of vLLM here, behind its best
        (1.3, 1.2, 1.38, 0.69, "FAIL, target missed"),  # the other way round
        (1.38, None, 1.38, None, "FAIL"),  # a tie is no win
        (1.3, None, 1.38, None, "PASS"),  # vLLM did not run
        (1.3, 1.4, None, None, "PASS"),
        (1.3, None, None, None, "-"),
        (1.3, None, None, 1.4, "-, target met"),
        (None, 1.4, 1.38, 0.69, "FAIL, target missed"),
    ],
)
def test_verdicts_of_times(ours, vllm, best, target, expected):
    assert str(judge(ours, vllm, best, target, higher_is_better=False)) == expected


@pytest.mark.parametrize(
    ("ours", "vllm", "best", "expected"),
    [
        (42_000, 33_000, 34_000, "PASS, target missed"),
        (45_000, 33_000, 34_000, "PASS, target met"),
        (33_500, 33_000, 34_000, "FAIL, target missed"),
        (35_000, 36_000, 34_000, "FAIL, target missed"),
    ],
)
def test_verdicts_of_rates(ours, vllm, best, expected):
    assert str(judge(ours, vllm, best, 45_000, higher_is_better=True)) == expected


def test_a_ratio_says_how_many_times_as_fast_ours_is():
    assert ratio(2.0, 3.0, higher_is_better=False) == 1.5 and ratio(3.0, 2.0, higher_is_better=True) == 1.5
    assert ratio(None, 1.0, True) is None and ratio(1.0, None, True) is None


# ---- floors


def test_the_bytes_of_llama_3_2_1b():
    """1.946 GB in the layers, 0.525 in the head, 32 KiB of keys and values a token."""
    assert LLAMA.layer_weights * 2 == 16 * (3072 + 2048 + 3 * 8192) * 2048 * 2 == 1_946_157_056
    assert LLAMA.weight_bytes == 1_946_157_056 + 128_256 * 2048 * 2 and LLAMA.kv_bytes == 32_768


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("decode-1", 1e3 * (2_471_493_632 + 256 * 32_768) / 4e12),
        ("decode-8", 1e3 * (2_471_493_632 + 8 * 256 * 32_768) / 4e12),
        ("decode-64", 0.8 + 0.2 + 1e3 * 64 * 256 * 32_768 / 4e12),
        ("decode-256", 1.0 + 0.25 + 1e3 * 256 * 256 * 32_768 / 4e12),
        # 4 * 16 layers * 2,048 columns of queries * 4,000 * 4,001 / 2 pairs
        ("first-token", 10 + 0.1 + 1e3 * (131_072 * 8_002_000 / 1e15 + 4_000 * 32_768 / 4e12)),
        (
            "prefill",
            64_000 / (20e-3 * 64_000 / 8192 + 0.15e-3 + 131_072 * 32 * 2_001_000 / 1e15 + 64_000 * 32_768 / 4e12),
        ),
    ],
)
def test_floors(name, expected):
    assert floor(STANDARD[name], LLAMA, CEILINGS) == pytest.approx(expected, rel=1e-12)


def test_the_floor_of_nano_vllms_workload():
    """Token by token over the workload itself."""
    lengths = [(len(prompt), out) for prompt, out in zip(nano_vllm().prompts, nano_vllm().output_lens)]
    seconds = 20e-3 * 142_827 / 8192 + 142_827 * 32_768 / 4e12
    seconds += 131_072 * sum(range(1, max(p for p, _ in lengths) + 1)[p - 1] * (p + 1) / 2 for p, _ in lengths) / 1e15
    for step in range(1, max(out for _, out in lengths)):
        keys = sum(prompt + step for prompt, out in lengths if out > step)
        seconds += (2_471_493_632 + keys * 32_768) / 4e12
    assert floor(STANDARD["nano-vllm"], LLAMA, CEILINGS) == pytest.approx(133_966 / seconds, rel=1e-12)


def test_no_floor_of_a_start():
    assert floor(STANDARD["start"], LLAMA, CEILINGS) is None and work(STANDARD["start"], LLAMA) is None


def test_the_rows_that_ceilings_are_measured_at_are_those_of_the_floors():
    """A ceiling that is missing is a KeyError in `floor`."""
    for row in STANDARD.values():
        found = replace(CEILINGS, layers=dict.fromkeys(layer_rows(row), 1e-3), head=dict.fromkeys(head_rows(row), 1e-4))
        assert (floor(row, LLAMA, found) is None) == (row.kind == "start")


def test_the_work_of_a_row():
    """FLOPs: two for every weight and token, and attention; bytes: weights and KV."""
    matrices, pairs = 2_471_493_632, 8_002_000
    decode, prompt = work(STANDARD["decode-8"], LLAMA), work(STANDARD["first-token"], LLAMA)
    assert decode is not None and prompt is not None
    assert (decode.flops, decode.num_bytes) == (8 * matrices + 131_072 * 8 * 256, matrices + 8 * 256 * 32_768)
    assert prompt.flops == 1_946_157_056 * 4_000 + 525_336_576 + 131_072 * pairs
    assert prompt.num_bytes == matrices + 4_000 * 32_768


# ---- formulas


def test_a_step_has_no_prefill_in_it():
    """Calls of 130, 110 and 150 ms with 51 tokens; one token takes 30 ms at best: (130 - 30) / 50."""
    row = TableRow("x", "decode", 2, 8, 51)
    samples = [Sample(0.130, 0.034, 102, 51), Sample(0.110, 0.030, 102, 51), Sample(0.150, 0.050, 102, 51)]
    assert figure(row, samples) == pytest.approx(2.0)
    assert each_figure(row, samples) == pytest.approx([2.0, 1.6, 2.4])


def test_the_other_figures():
    times = [Sample(each, None, 300, 1) for each in (0.2, 0.1, 0.4)]
    assert figure(TableRow("x", "first-token", 1, 40), times) == pytest.approx(200)
    assert figure(TableRow("x", "prefill", 3, 40), times) == pytest.approx(600)
    assert figure(TableRow("x", "nano-vllm", 3), times) == pytest.approx(1500)
    assert figure(TableRow("x", "start"), times) == pytest.approx(0.2)


class Steady(Contender):
    """A fake clock with it: 5 ms a prompt token of a call, 2 ms a step."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, []  # type: ignore[var-annotated]

    def generate(self, prompts: Any, output_lens: Any, temperature: float) -> int:
        self.calls.append((len(prompts), len(prompts[0]), max(output_lens), temperature))
        self.now += 5e-3 * sum(map(len, prompts)) + 2e-3 * (max(output_lens) - 1)
        return sum(output_lens)


class Slow(Steady):
    is_slow = True
    shortened = {"decode": 3}  # noqa: RUF012


def test_a_sample_by_a_fake_clock():
    contender, row = Steady(), TableRow("x", "decode", 2, 10, 9)
    found = sample(contender, row, top_id=5, seed=3, clock=lambda: contender.now)
    assert (found.seconds, found.first) == (pytest.approx(0.116), pytest.approx(0.1))
    assert figure(row, [found]) == pytest.approx(2.0) and (found.tokens, found.answer) == (18, 9)
    assert contender.calls == [(2, 10, 1, 0.0), (2, 10, 9, 0.0)]


def test_a_slow_contender_answers_in_short_and_the_figure_is_the_same():
    contender, row = Slow(), TableRow("x", "decode", 2, 10, 9)
    found = sample(contender, row, top_id=5, clock=lambda: contender.now)
    assert found.answer == 3 and figure(row, [found]) == pytest.approx(2.0)
    contender.calls.clear()
    warm_up(contender, TableRow("x", "nano-vllm", 9))
    assert [call[:3] for call in contender.calls] == [(8, 16, 2)]


def test_warming_up_meets_every_call_that_is_measured():
    contender = Steady()
    warm_up(contender, TableRow("x", "decode", 2, 10, 99))
    assert contender.calls == [(2, 10, 99, 0.0), (2, 10, 1, 0.0)]


def test_an_answer_of_another_length_is_no_measurement():
    class Short(Steady):
        def generate(self, prompts: Any, output_lens: Any, temperature: float) -> int:
            return 1

    with pytest.raises(RuntimeError, match="1 tokens came out, and 2 were asked for"):
        sample(Short(), TableRow("x", "prefill", 2, 4))


def test_a_contender_without_a_model_says_so():
    with pytest.raises(NotImplementedError, match="Contender loads nothing"):
        Contender(Setup("x", 8, 0.5))


# ---- rows, and what they are held against


def test_rows_by_name_and_by_size():
    assert parse_row("decode-64") == TableRow("decode-64", "decode", 64, 128, 256)
    assert parse_row("decode:2x8+4") == TableRow("decode:2x8+4", "decode", 2, 8, 4)
    assert parse_row("first-token:40") == TableRow("first-token:40", "first-token", 1, 40, 1)
    assert parse_row("prefill:3x7").lengths == ((7, 1),) * 3
    assert parse_row("nano-vllm:2").lengths == tuple(
        (len(prompt), length) for prompt, length in zip(nano_vllm(2).prompts, nano_vllm(2).output_lens)
    )


@pytest.mark.parametrize("text", ["decode", "decode-2", "decode:0x8+4", "decode:2x8+1", "prefill:3x7+2", "nano-vllm:0"])
def test_a_row_that_is_none(text):
    with pytest.raises(UserError, match=re.escape(f"--rows has {text!r}")):
        parse_row(text)


def test_known_figures_are_for_one_shape_and_one_card():
    shape = replace(SHAPES["llama-3.2-1b"], bos_token_id=7, eos_token_ids=(8,))
    assert known("decode-1", shape, "NVIDIA H200") == KNOWN["decode-1"]
    for config, card in ((shape, "NVIDIA H100"), (ModelConfig.from_folder(DATA / "tiny" / "tiny"), "NVIDIA H200")):
        assert known("decode-1", config, card).vllm_best is None
    assert known("decode:1x128+256", shape, "NVIDIA H200").target is None
    assert set(KNOWN) == set(STANDARD)


def test_the_pass_line_is_that_of_the_document():
    """docs/performance.md says where vLLM's best figures and the targets come from; the code holds the same ones."""
    text = (DATA.parents[1] / "docs" / "performance.md").read_text(encoding="utf-8")
    section = text.partition("## Ours beside its peers")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `([\w-]+)` \|[^|]*\| ([\d.,]+) \| ([\d.,]+) \|", section, flags=re.MULTILINE)
    numbers = {name: tuple(float(each.replace(",", "")) for each in pair) for name, *pair in found}
    assert numbers == {name: (each.vllm_best, each.target) for name, each in KNOWN.items()}
