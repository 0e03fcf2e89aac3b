"""The pictures of chapter 00, and the additions of the real model that they are about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chapters._figures import COLOURS, Figure, without_ticks
from tiny_vllm.ops.base import Ops

Addition = Callable[[np.ndarray, np.ndarray], np.ndarray]
FILLS = ((COLOURS[0], "white", ""), ("white", "black", ""), (COLOURS[1], "black", "//"))


def with_addition(ops: Ops, addition: Addition) -> Ops:
    """The operations of a model whose residual additions, two a layer, are addition(a, b) of flat float32 arrays."""

    def linear(x: Any, weight: Any, out: Any = None, add: bool = False) -> Any:
        if not add:
            return ops.linear(x, weight, out=out)
        out[...] = addition(out.ravel(), ops.linear(x, weight).ravel()).reshape(out.shape)
        return out

    return ops.replace(linear=linear)


def reach(owner: np.ndarray, threads: int) -> Figure:
    """owner (n,): the block that signed each element, -1 where nobody did."""
    reached, blocks = int((owner >= 0).sum()), int(owner.max()) + 1

    def draw(axes: Any) -> None:
        for block in range(blocks):
            fill, ink, hatch = FILLS[block % 3]
            axes.barh(0, threads, left=block * threads, color=fill, hatch=hatch, edgecolor="black", height=1)
            box = {"facecolor": fill, "edgecolor": "none", "pad": 2}
            axes.text((block + 0.5) * threads, 0, f"block {block}", ha="center", va="center", color=ink, bbox=box)
        axes.barh(0, owner.size - reached, left=reached, color="white", edgecolor=COLOURS[4], height=1, linewidth=2)
        axes.text((reached + owner.size) / 2, 0, "nobody", ha="center", va="center")
        axes.set(xlim=(-2, owner.size + 2), ylim=(-0.7, 0.7), xlabel="element")
        axes.set_xticks([*range(0, blocks * threads + 1, threads), owner.size])
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)

    return Figure(
        name="reach",
        alt=f"A row of {owner.size} elements. Blocks 0 to {blocks - 1} of {threads} threads cover the first {reached}; "
        "the rest belongs to nobody.",
        sentence=f"{blocks} blocks of {threads} threads reach {reached} of {owner.size} elements; "
        f"{owner.size - reached} are never added",
        draw=draw,
        height=1.3,
    )


def owners(block: np.ndarray, thread: np.ndarray, threads: int) -> Figure:
    """block, thread (n,): who signed each element."""
    launched = (int(block.max()) + 1) * threads

    def draw(axes: Any) -> None:
        for place in range(launched):
            spare = place >= block.size
            fill, ink, hatch = ("white", "#777777", "") if spare else FILLS[int(block[place]) % 3]
            axes.bar(place, 1, width=1, color=fill, hatch=hatch, edgecolor="black", linestyle=":" if spare else "-")
            box = {"facecolor": fill, "edgecolor": "none", "pad": 1.5}
            name = f"t{place % threads}" if spare else f"t{thread[place]}"
            axes.text(place, 0.5, name, ha="center", va="center", color=ink, bbox=box)
            if not spare:
                axes.text(place, -0.12, str(place), ha="center", va="top", color="#444444")
        for first in range(0, launched, threads):
            axes.text(first + (threads - 1) / 2, 1.12, f"block {first // threads}", ha="center", va="bottom")
        axes.set(xlim=(-0.6, launched - 0.4), ylim=(-0.45, 1.6), xlabel="element")
        without_ticks(axes)

    return Figure(
        name="owners",
        alt=f"{block.size} elements in a row, each signed by a thread of one of {launched // threads} blocks of "
        f"{threads} threads. The last {launched - block.size} threads have no element.",
        sentence=f"element 5 is thread {thread[5]} of block {block[5]}; "
        f"{launched - block.size} of {launched} threads have nothing to do",
        draw=draw,
        height=1.6,
    )
