"""The pictures of chapter 03, and the measurements that they are drawn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chapters._figures import COLOURS, STYLES, Figure, without_ticks
from tiny_vllm.reference.ops import rms_norm

BLUE, ORANGE = COLOURS[0], COLOURS[1]
LINE = {"edgecolor": "black", "linewidth": 0.8}
Norm = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


# ---- the residual stream of the real model


@dataclass(frozen=True)
class Stream:
    """The first token's vector on its way. rms[i]: after i layers; largest: the largest number that any norm reads."""

    rms: tuple[float, ...]
    largest: float


def watch(model: Any, ids: Sequence[int], norm: Norm = rms_norm) -> Stream:
    """Run the model (what smollm2() gives) on token ids with this norm; each layer's first norm sees what comes in."""
    sizes, largest = list[float](), list[float]()

    def watched(x: Any, weight: Any, eps: float, out: Any) -> Any:
        wide = x.astype(np.float64)
        sizes.append(float(np.sqrt(np.square(wide[0]).mean())))
        largest.append(float(np.abs(wide).max()))
        out[...] = norm(x, weight, eps)
        return out

    with np.errstate(all="ignore"):  # without the norm numbers overflow: that is the lesson
        model.logits(list(ids), model.ops.replace(rms_norm=watched))
    return Stream(tuple(sizes[:-1:2]), max(largest))  # two norms a layer; the last one stands behind the layers


def nothing(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """No norm at all."""
    return x


def summed_in_half(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """RMSNorm whose squares and whose sum are float16, as its inputs may be."""
    with np.errstate(over="ignore"):
        total = np.square(x.astype(np.float16)).sum(axis=1, dtype=np.float16)
    scale = (total.astype(np.float32) / x.shape[1] + eps) ** -0.5
    return x * (scale[:, None] * weight)


def growth(with_norm: Stream, without: Stream) -> Figure:
    lost = int(np.isnan(without.rms).argmax())

    def draw(axes: Any) -> None:
        for stream, style, label in ((with_norm, STYLES[0], "with the norm"), (without, STYLES[1], "without it")):
            axes.plot(range(len(stream.rms)), stream.rms, label=label, markevery=1, **style)
        last = lost - 1
        axes.annotate(
            f"NaN after layer {lost}", (last, without.rms[last]), xytext=(last + 1.2, without.rms[last] / 1e3)
        )
        axes.annotate(
            f"{max(with_norm.rms):.0f}", (12, max(with_norm.rms)), xytext=(12, max(with_norm.rms) * 8), ha="center"
        )
        axes.set(yscale="log", ylim=(1e-2, 1e32), xlabel="layers passed", ylabel="root mean square of token 0")
        axes.set_yticks([10.0**power for power in (-2, 4, 10, 16, 22, 28)])
        axes.minorticks_off()
        axes.legend(loc="upper right")

    return Figure(
        name="growth",
        alt="The root mean square of the first token's vector after each layer, on a logarithmic axis. Without the "
        f"norm it rises by many powers of ten a layer and is NaN after layer {lost}. With it, it stays below 1,000.",
        sentence=f"without the norm: {without.rms[3]:.1e} after layer 3, NaN after layer {lost}. "
        f"with it: {with_norm.rms[0]:.2f} at the start, {max(with_norm.rms):.0f} at most",
        draw=draw,
        height=2.9,
    )


# ---- who owns what


def owned(owner: np.ndarray, thread: int) -> str:
    return " ".join(str(column) for column in np.flatnonzero(owner == thread))


def owners(owner: np.ndarray) -> Figure:
    """owner (columns,): the thread that signed each column of a row."""
    threads = int(owner.max()) + 1
    fills = {3: (BLUE, "white", ""), 4: (ORANGE, "black", "//")}

    def draw(axes: Any) -> None:
        for column, thread in enumerate(owner):
            fill, ink, hatch = fills.get(int(thread), ("white", "black", ""))
            axes.bar(column, 1, width=1, color=fill, hatch=hatch, **LINE)
            box = {"facecolor": fill, "edgecolor": "none", "pad": 1.5}
            axes.text(column, 0.5, f"t{thread}", ha="center", va="center", color=ink, bbox=box)
            axes.text(column, -0.12, str(column), ha="center", va="top", color="#444444")
        for column in range(0, len(owner), threads):
            axes.plot([column - 0.5] * 2, [0, 1.3], color="black", linewidth=1.5)
            axes.text(column - 0.3, 1.12, f"pass {column // threads + 1}", va="bottom")
        axes.set(xlim=(-0.6, len(owner) - 0.4), ylim=(-0.45, 1.6))
        axes.set_xlabel("column")
        without_ticks(axes)

    return Figure(
        name="owners",
        alt=f"A row of {len(owner)} columns, each signed by one of {threads} threads. The threads sign in order and "
        "begin again after the last one, so each thread owns every eighth column.",
        sentence=f"thread 3 owns {owned(owner, 3)}; thread 4 owns {owned(owner, 4)}",
        draw=draw,
        height=1.5,
    )


# ---- halving


def halvings(values: Sequence[float] | np.ndarray) -> list[np.ndarray]:
    """The sums that still count after each step, until one is left; as many values as a power of two."""
    steps = [np.asarray(values, np.float64)]
    while steps[-1].size > 1:
        steps.append(steps[-1].reshape(2, -1).sum(axis=0))
    return steps


def tree(values: Sequence[float] | np.ndarray) -> Figure:
    steps = halvings(values)
    added = [step.size for step in steps[1:]]

    def draw(axes: Any) -> None:
        for level, step in enumerate(steps):
            y = -1.6 * level
            for thread, value in enumerate(step):
                last = level == len(steps) - 1
                axes.bar(thread, 0.7, 0.8, y, color=BLUE if last else "white", **LINE)
                axes.text(thread, y + 0.35, f"{value:g}", ha="center", va="center", color="white" if last else "black")
            for target in range(added[level] if level < len(added) else 0):
                below, other = (target, target), (target + 0.22, target + added[level])
                for (end, start), colour, dash in ((below, "black", "-"), (other, BLUE, (0, (4, 2)))):
                    arrow = {"arrowstyle": "->", "color": colour, "linestyle": dash, "shrinkA": 0, "shrinkB": 1}
                    axes.annotate("", (end, y - 0.9), (start, y - 0.02), arrowprops=arrow)
            name = "squares" if level == 0 else f"distance {step.size}"
            axes.text(-0.75, y + 0.35, name, ha="right", va="center")
        for thread in range(len(values)):
            axes.text(thread, 0.85, f"t{thread}", ha="center", va="bottom", color="#444444")
        axes.set(xlim=(-2.3, len(values) - 0.5), ylim=(-1.6 * len(added) - 0.1, 1.3))
        axes.set_axis_off()

    return Figure(
        name="tree",
        alt=f"{len(values)} squares in a row of threads. In each step the lower half of the threads adds the number of "
        f"the thread one distance further on, until thread 0 holds {steps[-1][0]:g}.",
        sentence=f"{len(added)} steps, {'+'.join(map(str, added))} additions, "
        f"1 of {len(values)} threads busy in the last: {steps[-1][0]:g}",
        draw=draw,
        height=3.0,
    )


def table(partials: np.ndarray) -> str:
    """What the trace of a tree shows: a line a barrier, "." where a thread's sum counts no more."""
    lines, count = [], partials.shape[1]
    for barrier, row in enumerate(partials):
        alive = max(1, count >> barrier)
        cells = [f"{value:g}" if thread < alive else "." for thread, value in enumerate(row)]
        lines.append(f"barrier {barrier + 1}: " + " ".join(f"{cell:>3}" for cell in cells))
    return "\n".join(lines)


# ---- what the rungs ask of the memory


def rungs(runs: Mapping[str, Any], barriers: Mapping[str, int], warps: Mapping[str, int]) -> str:
    """runs: launches with count=True; barriers: that one thread passes, none while its exercise is not solved.

    warps: of the whole grid. A warp loads as often as its busiest lane, so lanes that do nothing spare it nothing.
    """
    lines = [f"{'':12}{'loads a warp':>15}{'sectors a request':>19}{'barriers':>10}"]
    for rung, run in runs.items():
        counts = run.report.of("global load")
        if rung not in barriers or np.isnan(run["out"]).any():
            lines.append(f"{rung:12}  not solved yet")
            continue
        loads = sum(each.requests for each in counts) // warps[rung]
        sectors = max(each.sectors_a_request for each in counts)
        lines.append(f"{rung:12}{loads:>15}{sectors:>19.0f}{barriers[rung]:>10}")
    return "\n".join(lines)
