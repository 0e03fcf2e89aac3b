"""The course's ladder: for each operation all its kernels in order, from the first one to the engine's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from tiny_vllm.bench.ops.operation import Operation
from tiny_vllm.bench.ops.report import rate_cells, rates
from tiny_vllm.bench.ops.timer import Machine, Timer
from tiny_vllm.course import load_course_ops
from tiny_vllm.device.base import Device
from tiny_vllm.ops.paged_attention import PREFILL, quickest_prefill, what_is_missing
from tiny_vllm.ops.tuned import TunedOps

COURSE, PLAIN, TUNED = "course", "kernels/, a kernel a primitive", "kernels/, as the engine runs them"


@dataclass(frozen=True)
class Rung:
    """operation: how the names of those begin that it can do; ops: a set, or what stands for one in this operation."""

    operation: str
    name: str
    ops: Any


@dataclass(frozen=True)
class RungTime:
    """seconds: of one launch; None where nothing is measured. before: those of the rung before."""

    operation: Operation
    rung: str
    seconds: float | None
    before: float | None


def rungs(device: Device, config: Any, dtype: Any) -> list[Rung]:
    """All that exist, an operation's in the order of the course."""
    course = load_course_ops(device, config, dtype)
    stages = {each.__name__: each for each in type(course).__mro__}

    def make(name: str, *args: Any) -> Any:
        return stages[name](device, config, dtype, *args)

    found = [_norm(course, f"chapter 03, {rung}") for rung in ("one_thread", "tree", "warp")]
    found += [Rung("linear", f"chapter 05, {gemm}", make("LinearOps", gemm)) for gemm in ("naive", "tiled", "cublas")]
    found += [Rung("attention", "chapter 06, scores in memory", make("KVCacheOps"))]
    found += [_online(make("OnlineSoftmaxOps"), rung) for rung in ("one_pass", "flash_attention")]
    found += [Rung("attention", "chapter 14, paged", course)]
    found += [Rung(name, COURSE, course) for name in ("embed", "rope", "write_kv", "silu_mul", "take_rows", "argmax")]
    found += [Rung("stage", COURSE, course)]
    plain, tuned = TunedOps(device, config, dtype, "plain", "composed"), TunedOps(device, config, dtype)
    found += [Rung("attention", "kernels/attention.cu", plain), Rung("stage", PLAIN, plain)]
    if quickest_prefill(device) != PREFILL and not what_is_missing(device, config, dtype):
        found += [Rung("attention prefill", "kernels/paged_prefill.cu", TunedOps(device, config, dtype, "mma.sync"))]
    return [*found, Rung("", TUNED, tuned)]


def _norm(course: Any, name: str) -> Rung:
    rung = name.rpartition(" ")[2]
    ops = SimpleNamespace(reserve=course.reserve, rms_norm=partial(course.rms_norm, rung=rung))
    return Rung("rms_norm", name, ops)


def _online(ops: Any, rung: str) -> Rung:
    ops.attend = partial(ops.attend, rung=rung)
    return Rung("attention", f"chapter 13, {rung}", ops)


def climb(timer: Timer | None, found: Iterable[Rung], operations: Iterable[Operation]) -> Iterator[RungTime]:
    """Every operation by each of its rungs; without a timer they are only listed."""
    found = list(found)
    for operation in operations:
        before = None
        for rung in found:
            if operation.name.startswith(rung.operation):
                seconds = None if timer is None else timer.measure(rung.ops, operation)
                yield RungTime(operation, rung.name, seconds, before)
                before = seconds


def ladder_dicts(machine: Machine | None, times: Iterable[RungTime]) -> list[dict[str, Any]]:
    """For JSON."""
    found = []
    for each in times:
        one = each.operation
        about = {"operation": one.name, "rows": one.rows, "shape": one.shape, "rung": each.rung}
        found.append(about | {"rates": rates(machine, one, each.seconds), "times_the_rung_before": _gain(each)})
    return found


def ladder_table(machine: Machine | None, times: Iterable[RungTime]) -> str:
    """Markdown, a line a rung: us, GB/s, TFLOP/s, percentage of the floor, and how many times the rung before."""
    heads = ["operation", "rows", "shape", "rung", "us", "GB/s", "TFLOP/s", "of floor", "gain"]
    lines = [heads, ["---"] * 4 + ["---:"] * 5]
    for each in ladder_dicts(machine, times):
        gain = each["times_the_rung_before"]
        cells = [each["operation"], str(each["rows"]), each["shape"], each["rung"], *rate_cells(each["rates"])]
        lines.append([*cells, "-" if gain is None else f"{gain:.2f}x"])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _gain(each: RungTime) -> float | None:
    return each.before / each.seconds if each.before and each.seconds else None
