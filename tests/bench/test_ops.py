"""What each operation must move and compute, and how a table of them reads."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.conftest import DATA
from tiny_vllm import cli, cli_bench_ops
from tiny_vllm.bench.ops.inputs import Inputs, Pool, Step
from tiny_vllm.bench.ops.ladder import Rung, RungTime, climb, ladder_table, rungs
from tiny_vllm.bench.ops.operation import Operation
from tiny_vllm.bench.ops.operations import operations
from tiny_vllm.bench.ops.report import as_dicts, table
from tiny_vllm.bench.ops.timer import Machine, Row, Timer, num_launches
from tiny_vllm.course import load_course_ops
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.shapes import SHAPES
from tiny_vllm.ops.tuned import TunedOps

TINY = DATA / "tiny" / "tiny"
# Llama-3.2-1B in bfloat16, 8 rows, 512 keys, a prompt of 512: (bytes, FLOPs), each worked out by hand
BY_HAND = {
    "embed": (8 * 4 + 2 * 32_768, 0),
    "rms_norm": (2 * 32_768 + 4_096, 65_536),
    "linear qkv": (32_768 + 12_582_912 + 49_152, 100_663_296),
    "rope": (2 * (32_768 + 8_192) + 32 + 2_048, 61_440),
    "write_kv": (2 * 2 * 8_192 + 32, 0),
    "attention decode": (8_388_608 + 2 * 32_768 + 1_092, 33_554_432),
    "attention prefill": (1_048_576 + 2 * 2_097_152 + 140, 1_075_838_976),
    "linear o": (32_768 + 8_388_608 + 2 * 32_768, 67_108_864),
    "linear gate_up": (32_768 + 67_108_864 + 262_144, 536_870_912),
    "silu_mul": (262_144 + 131_072, 262_144),
    "linear down": (131_072 + 33_554_432 + 2 * 32_768, 268_435_456),
    "take_rows": (8 * 4 + 2 * 32_768, 0),
    "linear head": (32_768 + 525_336_576 + 4_104_192, 4_202_692_608),
    "argmax": (4_104_192 + 32, 1_026_048),
    "sampling": (4_104_192 + 8 * 76 + 32, 2_052_096),
    "sampling top-k top-p": (4_104_192 + 8 * 76 + 32, 2_052_096),
    # norm, weights and residual as above; q, k and v written once; 64 float32 of the rotation and two indices a row
    "stage attn_in": (32_768 + 4_096 + 12_582_912 + 49_152 + 2_048 + 64, 65_536 + 100_663_296 + 61_440),
    "stage attn_out": (32_768 + 8_388_608 + 2 * 32_768, 67_108_864),
    "stage mlp_in": (32_768 + 4_096 + 67_108_864 + 131_072, 65_536 + 536_870_912 + 262_144),
    "stage mlp_out": (131_072 + 33_554_432 + 2 * 32_768, 268_435_456),
    "stage head": (32_768 + 32 + 4_096 + 525_336_576 + 4_104_192, 65_536 + 4_202_692_608),
}


def test_the_counts_of_llama_3_2_1b():
    found = operations(SHAPES["llama-3.2-1b"], "bfloat16", [8], 512, [Step(1, 512)])
    assert {each.name: (each.num_bytes, each.flops) for each in found} == BY_HAND


def test_every_number_of_rows_is_there():
    found = list(operations(SHAPES["smollm2-135m"], "float32", [1, 5], 7, [Step(2, 3, 4), Step(1, 9)]))
    assert [each.rows for each in found if each.name == "attention prefill"] == [6, 9]
    assert all([e.rows for e in found if e.name == name] == [1, 5] for name in set(BY_HAND) - {"attention prefill"})


def test_the_shapes_that_the_command_line_offers():
    assert list(SHAPES) == list(cli_bench_ops.SHAPE_NAMES)
    assert (SHAPES["smollm2-135m"].num_attention_heads, SHAPES["smollm2-135m"].head_dim) == (9, 64)


@pytest.mark.parametrize(("requests", "new", "cached"), [(1, 1, 0), (3, 1, 511), (2, 17, 0), (2, 5, 33)])
def test_pairs_and_places_of_a_step(device, requests, new, cached):
    step = Step(requests, new, cached)
    meta = Inputs(device, np.float32, 1 << 12).meta(step)
    positions, slots = device.to_host(meta.positions), device.to_host(meta.slot_mapping)
    assert step.pairs == sum(int(position) + 1 for position in positions)
    assert len(set(slots.tolist())) == step.tokens == meta.query_start_loc[-1]
    blocks = device.to_host(meta.block_table).repeat(new, axis=0)
    assert np.array_equal(blocks[np.arange(step.tokens), positions // 16] * 16 + positions % 16, slots)
    assert device.to_host(meta.seq_lens).tolist() == meta.seq_lens_host == [cached + new] * requests


def test_a_pool_walks_through_its_memory(device):
    pool = Pool(device, np.float32, 1024, None)
    assert pool.take(256).shape == (256,)  # half of the grown memory
    first, second = pool.take(3, 5), pool.take(65)
    first[...], second[...] = 1, 2
    assert device.to_host(first).tolist() == [[1] * 5] * 3 and device.to_host(second).tolist() == [2] * 65
    again = [pool.take(256) for _ in range(3)]
    again[0][...], again[1][...] = 3, 4
    assert device.to_host(again[0]).tolist() == [3] * 256 and device.to_host(again[2]).tolist() == [3] * 256


@pytest.mark.parametrize("name", ["tuned", "plain", "course"])
def test_every_operation_runs(device, name):
    config = ModelConfig.from_folder(TINY)
    ops, inputs = cli_bench_ops._make(name, device, config, np.dtype(np.float32)), Inputs(device, np.float32, 1 << 16)
    for each in operations(config, np.float32, [1, 9], 18, [Step(2, 3, 4)]):
        if each.engine_only and ops.name != "tuned":
            continue
        ops.reserve(each.rows, each.requests, each.max_len)
        arrays = each.arrays(inputs)
        before = [device.to_host(array) for array in _plain(arrays)]
        with device.no_allocation():
            each.launch(ops, *arrays)
        after = [device.to_host(array) for array in _plain(arrays)]
        assert all(np.isfinite(array).all() for array in after), each.name
        changed = [not np.array_equal(*pair) for pair in zip(before, after)]
        assert sum(changed) == (0 if each.name == "rope" else 1), each.name  # rope turns zeros


def _plain(arrays: tuple[Any, ...]) -> list[Any]:
    return [array for array in arrays if hasattr(array, "shape")]


def test_a_time_is_that_of_one_launch_of_many(device, monkeypatch):
    """A launch that takes 1 ms alone is captured 20 times; replays of 0.5 s in the median give 25 ms."""
    config, calls = ModelConfig.from_folder(TINY), []

    class Counting(TunedOps):
        def silu_mul(self, gate_up: Any, out: Any = None) -> Any:
            calls.append(gate_up.__array_interface__["data"] if device.name == "emulator" else gate_up.data.ptr)
            return super().silu_mul(gate_up, out)

    timer, times = Timer(Inputs(device, np.float32, 1 << 20), sweep_bytes=1 << 18), [1e-3, 9.0, 9.0] + [0.4, 0.6] * 10
    monkeypatch.setattr(timer, "seconds", lambda run: times.pop(0))  # one launch, two replays to warm up, twenty more
    [one] = (each for each in operations(config, np.float32, [3], 1, []) if each.name == "silu_mul")
    assert timer.measure(Counting(device, config, np.float32), one) == pytest.approx(0.5 / 20)
    assert len(calls) == len(set(calls)) == 21 and times == []


def test_a_time_on_the_device(device):
    timer = Timer(Inputs(device, np.float32, 1 << 20), sweep_bytes=1 << 18)
    config = ModelConfig.from_folder(TINY)
    [one] = (each for each in operations(config, np.float32, [3], 1, []) if each.name == "rms_norm")
    assert timer.measure(TunedOps(device, config, np.float32), one) > 0


def test_how_many_launches_a_graph_holds():
    assert num_launches(1 << 20, 1e-6) == 320
    assert num_launches(1, 1e-6) == 400 and num_launches(1 << 30, 1e-6) == 2
    assert num_launches(1 << 20, 1e-3) == 20 and num_launches(1, 5.0) == 2


def example(name: str, num_bytes: int, flops: int) -> Operation:
    return Operation(name, 8, "(8,16)", num_bytes, flops, lambda inputs: (), lambda ops: None)


# 1 MB at 1 TB/s takes 1 us; 1 GFLOP at 100 TFLOP/s takes 10 us
ROWS = [
    Row(example("moves", 1_000_000, 10), {"tuned": 2e-6, "course": 8e-6}),
    Row(example("computes", 1_000_000, 1_000_000_000), {"tuned": 20e-6, "course": None}),
]


def test_the_table():
    lines = table(Machine(1e12, 1e14), ROWS).splitlines()
    assert lines[0].startswith("| operation | rows | shape | bytes | FLOPs | floor us | tuned us | tuned GB/s |")
    assert lines[2] == ("| moves | 8 | (8,16) | 1 MB | 10 | 1.00 | 2.00 | 500 | 0.00 | 50% | 8.00 | 125 | 0.00 | 12% |")
    assert lines[3] == "| computes | 8 | (8,16) | 1 MB | 1 G | 10.00 | 20.00 | 50 | 50.00 | 50% | - | - | - | - |"
    assert {line.count("|") for line in lines} == {15}


def test_without_times_the_table_counts():
    rows = [replace(row, seconds=dict.fromkeys(row.seconds)) for row in ROWS]
    lines = table(None, rows).splitlines()
    assert lines[0] == "| operation | rows | shape | bytes | FLOPs |" and lines[3].endswith("| 1 MB | 1 G |")


def test_the_json():
    moves, computes = as_dicts(Machine(1e12, 1e14), ROWS)
    expected = {"operation": "moves", "rows": 8, "shape": "(8,16)", "bytes": 1_000_000, "flops": 10}
    assert expected.items() <= moves.items() and moves["floor_seconds"] == pytest.approx(1e-6)
    rates = {"seconds": 2e-6, "bytes_per_second": 5e11, "flops_per_second": 5e6, "floor_share": 0.5}
    assert moves["ops"]["tuned"] == pytest.approx(rates) and computes["ops"]["course"] is None


def bench(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["bench", "ops", "--device", "emulator", *arguments])
    return code, *capsys.readouterr()


def test_the_emulator_counts_and_times_nothing(capsys):
    code, out, _ = bench(capsys, "--model", str(TINY), "--rows", "1", "3", "3")
    assert code == 0 and "No times" in out and "GB/s" not in out
    assert "| rms_norm | 3 | (3,64) | 1.792 kB | 768 |" in out and out.count("| rms_norm |") == 2
    assert "| attention prefill | 512 | 1 x 512, 512 keys |" in out


def test_json_on_the_emulator(capsys):
    code, out, _ = bench(capsys, "--rows", "8", "--dtype", "bfloat16", "--prefill", "1x512", "--json")
    found = json.loads(out)
    assert code == 0 and (found["model"], found["bytes_per_second"], found["context"]) == ("llama-3.2-1b", None, 512)
    assert {each["operation"]: (each["bytes"], each["flops"]) for each in found["operations"]} == BY_HAND
    assert found["operations"][0]["ops"] == {"tuned": None, "course": None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rows", "8", "0"), "--rows is 0; give at least 1"),
        (("--context", "-2"), "--context is -2; give at least 1"),
        (("--prefill", "32x"), "--prefill is '32x'; give prompts x tokens, as 32x2000"),
        (("--prefill", "0x5"), "--prefill is '0x5'"),
        (("--model", "no-such-folder"), "no-such-folder is not a folder"),
        (("--model-shape", "llama-9"), "invalid choice: 'llama-9'"),
        (("--model", "x", "--model-shape", "smollm2-135m"), "not allowed with argument"),
        (("--ops", "fast"), "invalid choice: 'fast'"),
        (("--ladder", "--ops", "tuned"), "--ladder has every set of operations; leave out --ops"),
        (("--only", "softmax"), "--only is 'softmax'; the operations are embed, rms_norm"),
    ],
)
def test_mistakes(capsys, arguments, message):
    code, out, err = bench(capsys, *arguments)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def test_the_course_is_the_plain_set(device):
    config = ModelConfig.from_folder(TINY)
    assert type(cli_bench_ops._make("course", device, config, np.float32)) is type(
        load_course_ops(device, config, np.float32)
    )


def test_the_ladder_has_every_rung(device):
    """In the order of the course; the last one is what the engine runs."""
    found = rungs(device, ModelConfig.from_folder(TINY), np.dtype(np.float32))
    names = {name: [each.name for each in found if name.startswith(each.operation)] for name in BY_HAND}
    assert names["rms_norm"][:3] == [f"chapter 03, {rung}" for rung in ("one_thread", "tree", "warp")]
    assert names["linear qkv"][:3] == [f"chapter 05, {gemm}" for gemm in ("naive", "tiled", "cublas")]
    chapters = ["chapter 06, scores in memory", "chapter 13, one_pass", "chapter 13, flash_attention"]
    assert names["attention decode"][:5] == [*chapters, "chapter 14, paged", "kernels/attention.cu"]
    assert all(each[-1] == "kernels/, as the engine runs them" for each in names.values())
    assert min(len(each) for name, each in names.items() if "sampling" not in name) == 2


@pytest.mark.parametrize("name", ["rms_norm", "linear qkv", "attention decode", "attention prefill", "argmax"])
def test_every_rung_gives_the_same(device, name):
    """Each launches a kernel of its own on the same arrays."""
    config, dtype = ModelConfig.from_folder(TINY), np.dtype(np.float32)
    inputs = Inputs(device, dtype, 1 << 16)
    for each in operations(config, dtype, [3], 18, [Step(2, 3, 4)]):
        if each.name != name:
            continue
        arrays, results = each.arrays(inputs), []
        out = next(array for array in reversed(arrays) if hasattr(array, "shape"))
        for rung in rungs(device, config, dtype):
            if name.startswith(rung.operation):
                rung.ops.reserve(each.rows, each.requests, each.max_len)
                out[...] = 77
                each.launch(rung.ops, *arrays)
                results.append(device.to_host(out))
        assert len(results) >= 2
        for other in results[1:]:
            np.testing.assert_allclose(other, results[0], rtol=1e-4, atol=1e-5)


def test_the_ladders_rungs_are_not_one_kernel(device, monkeypatch):
    """What a rung launches, by name."""
    config, dtype = ModelConfig.from_folder(TINY), np.dtype(np.float32)
    course = load_course_ops(device, config, dtype)
    launched: list[str] = []
    home: Any = next(each for each in type(course).__mro__ if "launch" in vars(each))
    plain = home.launch

    def launch(self: Any, source: str, kernel: str, *rest: Any) -> Any:
        launched.append(kernel)
        return plain(self, source, kernel, *rest)

    monkeypatch.setattr(home, "launch", launch)
    [one] = (each for each in operations(config, dtype, [3], 18, []) if each.name == "rms_norm")
    for rung in rungs(device, config, dtype):
        if "rms_norm".startswith(rung.operation):
            one.launch(rung.ops, *one.arrays(Inputs(device, dtype, 1 << 16)))
    assert launched == ["rms_norm_one_thread", "rms_norm_tree", "rms_norm_warp"]


def test_the_ladders_table():
    moves = ROWS[0].operation
    times = [RungTime(moves, "first", 8e-6, None), RungTime(moves, "second", 2e-6, 8e-6)]
    lines = ladder_table(Machine(1e12, 1e14), times).splitlines()
    assert lines[2] == "| moves | 8 | (8,16) | first | 8.00 | 125 | 0.00 | 12% | - |"
    assert lines[3] == "| moves | 8 | (8,16) | second | 2.00 | 500 | 0.00 | 50% | 4.00x |"
    assert {line.count("|") for line in lines} == {10}


def test_each_rung_is_measured_beside_the_one_before(device):
    """By a timer that says 8, 4, 2 and 1 us in turn."""

    class Halving:
        seconds = 16e-6

        def measure(self, ops: Any, operation: Operation) -> float:
            self.seconds /= 2
            return self.seconds

    timer: Any = Halving()
    found = [Rung(name, name or "last", None) for name in ("rms", "rms_norm", "rope", "")]
    times = list(climb(timer, found, [replace(ROWS[0].operation, name="rms_norm")]))
    assert [(each.rung, each.seconds, each.before) for each in times] == [
        ("rms", 8e-6, None),
        ("rms_norm", 4e-6, 8e-6),
        ("last", 2e-6, 4e-6),
    ]


def test_the_ladder_from_the_command_line(capsys):
    code, out, _ = bench(capsys, "--model", str(TINY), "--ladder", "--rows", "3", "--only", "rms_norm", "--json")
    found = json.loads(out)["ladder"]
    assert code == 0 and [each["rung"] for each in found][:2] == ["chapter 03, one_thread", "chapter 03, tree"]
    assert {each["operation"] for each in found} == {"rms_norm"} and found[0]["rates"] is None
    code, out, _ = bench(capsys, "--model", str(TINY), "--ladder", "--rows", "3", "--only", "rms_norm")
    assert code == 0 and "| rms_norm | 3 | (3,64) | chapter 03, warp | - | - | - | - | - |" in out
