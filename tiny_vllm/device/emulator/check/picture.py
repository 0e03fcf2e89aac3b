"""A picture of one warp's addresses: over the 32-byte sectors of global memory, over the 32 banks of shared memory."""

from __future__ import annotations

from typing import Any

from tiny_vllm.device.emulator.check.counts import BANKS, LANES, SECTOR, Count, Report
from tiny_vllm.errors import KernelError, UserError

_BLUE, _ORANGE = "#0072B2", "#E69F00"  # Okabe and Ito's, which colour-blind readers tell apart
_MOST_SECTORS = 40  # drawn


def plot(report: Report, line: int | None = None) -> Any:
    """A matplotlib figure: the worst global access on top, the worst shared access below.

    line: only of this line of the text. Raises UserError without matplotlib, KernelError when there is nothing to draw.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError('the picture needs matplotlib; pip install "tiny-vllm[notebooks]"') from None
    chosen = [each for each in (_worst(report, "global", line), _worst(report, "shared", line)) if each]
    if not chosen:
        where = "" if line is None else f" in line {line}"
        raise KernelError(f"{report.kernel} touches no memory{where}; there is nothing to draw")
    figure = Figure(figsize=(6, 2.4 * len(chosen)), layout="constrained")
    for number, count in enumerate(chosen, 1):
        axes = figure.add_subplot(len(chosen), 1, number)
        if count.kind.startswith("global"):
            _draw_sectors(axes, count)
        else:
            _draw_banks(axes, count)
    return figure


def _worst(report: Report, space: str, line: int | None) -> Count | None:
    kinds = [each for each in report.counts if each.kind.startswith(space) and line in (None, each.line)]
    return max(kinds, key=lambda c: c.sectors_a_request - c.ideal_sectors + c.bank_ways, default=None)


def _addresses(count: Count) -> list[tuple[int, int]]:
    return [(lane, address) for lane, address in enumerate(count.example) if address is not None]


def _draw_sectors(axes: Any, count: Count) -> None:
    lanes = _addresses(count)
    first = min(address for _, address in lanes) // SECTOR * SECTOR
    axes.barh([lane for lane, _ in lanes], [count.size] * len(lanes), left=[a - first for _, a in lanes], color=_BLUE)
    touched = sorted({byte // SECTOR for _, a in lanes for byte in (a - first, a - first + count.size - 1)})
    for sector in touched:
        axes.axvspan(sector * SECTOR, (sector + 1) * SECTOR, color=_ORANGE, alpha=0.25, linewidth=0.5)
    shown = min(touched[-1], touched[0] + _MOST_SECTORS) + 1
    axes.set_xlim(0, shown * SECTOR)
    axes.set_xticks(range(0, shown * SECTOR + 1, SECTOR * -(-shown // 8)))
    axes.set(ylabel="lane", xlabel="byte", ylim=(LANES - 0.5, -0.5))
    axes.set_title(f"{_where(count)}: {len(touched)} sectors of 32 bytes for one warp", fontsize=9)


def _draw_banks(axes: Any, count: Count) -> None:
    lanes = _addresses(count)
    words = max(count.size // 4, 1)
    points = [(lane, (address // 4 + i) % BANKS) for lane, address in lanes for i in range(words)]
    axes.scatter([bank for _, bank in points], [lane for lane, _ in points], s=8, color=_BLUE, marker="s")
    axes.set(ylabel="lane", xlabel="bank", xlim=(-0.5, BANKS - 0.5), ylim=(LANES - 0.5, -0.5))
    axes.set_title(f"{_where(count)}: {count.bank_ways:.0f} of one bank at once", fontsize=9)


def _where(count: Count) -> str:
    return f"{count.file}:{count.line} {count.kind}"
