"""A progress bar for long offline work."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


def progress_bar(total: int, shown: bool | None) -> Any:
    """A bar of `total` prompts. shown None: only where a person waits for several, on a terminal."""
    hidden = not shown if shown is not None or total < 2 else None  # None: tqdm asks whether it is a terminal
    return tqdm(total=total, desc="prompts", disable=hidden)
