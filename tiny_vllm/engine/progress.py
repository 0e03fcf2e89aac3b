"""A progress bar for long offline work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


@contextmanager
def progress_bar(total: int, shown: bool | None) -> Iterator[Callable[[], object]]:
    """A bar of `total` prompts while the context lasts; gives what to call as each of them ends.

    shown None: only where a person waits for several, on a terminal.
    """
    if not shown and (shown is not None or total < 2):
        yield _nothing  # a hidden bar takes as long to make as a step to plan
        return
    with tqdm(total=total, desc="prompts", disable=None if shown is None else False) as bar:  # None: it asks a terminal
        yield bar.update


def _nothing() -> None:
    """Nobody looks."""
