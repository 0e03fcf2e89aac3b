"""Stop strings in a text that grows: nothing is given out that a stop string may still turn out to begin in.

Where the answer ends depends on its text only, not on how tokens divide it: at the stop string that is complete first,
and of those complete at once, at the one that begins first.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """`text` is what may be given out so far; `found` the stop string that ended it, which nothing follows.

    include_in_output: the text ends behind the stop string, not before it.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        self.text = ""
        self.found: str | None = None
        self._stops, self._include = tuple(stops), include_in_output
        self._held = ""  # the end of the text, with which a stop string may begin

    def add(self, piece: str, searched: bool = True) -> None:
        """Take in more text. searched=False: no stop string ends in this piece, though one may begin there."""
        if self.found is not None:
            return
        self._held += piece
        match = self._first_match(len(self._held) - len(piece)) if searched else None
        if match is None:
            self._give(len(self._held) - self._num_held())
            return
        start, self.found = match
        self._give(start + len(self.found) if self._include else start)
        self._held = ""

    def flush(self) -> None:
        """The text is complete: what was held back is a part of it."""
        self._give(len(self._held))

    def _first_match(self, num_before: int) -> tuple[int, str] | None:
        """(start, stop string) of the match that ends first, behind the first num_before characters of what is held."""
        matches = []
        for stop in self._stops:
            start = self._held.find(stop, max(num_before - len(stop) + 1, 0))
            if start >= 0:
                matches.append((start + len(stop), start, stop))
        return min(matches)[1:] if matches else None

    def _num_held(self) -> int:
        """The length of the longest beginning of a stop string with which the text ends, not a whole one."""
        longest = min(max(map(len, self._stops), default=1) - 1, len(self._held))
        for length in range(longest, 0, -1):
            end = self._held[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stops):
                return length
        return 0

    def _give(self, count: int) -> None:
        self.text, self._held = self.text + self._held[:count], self._held[count:]
