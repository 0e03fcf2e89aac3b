"""How fast an answer came, beside the floor: one token cannot cost less than reading every weight once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Stopwatch:
    """Times of one request's tokens, in seconds."""

    started: float = field(default_factory=time.perf_counter)
    ticks: list[float] = field(default_factory=list)

    def tick(self) -> None:
        """A token has come."""
        self.ticks.append(time.perf_counter())

    def figures(self, weight_bytes: int, bandwidth: float) -> Figures:
        """weight_bytes: read by one decode step; bandwidth: bytes a second that the machine reaches."""
        steps, seconds = len(self.ticks) - 1, self.ticks[-1] - self.ticks[0]
        rate = steps / seconds if steps and seconds > 0 else None
        return Figures(len(self.ticks), self.ticks[0] - self.started, rate, weight_bytes, bandwidth)


@dataclass(frozen=True)
class Figures:
    """tokens_per_second is that of decode: tokens after the first over the time since the first; None for one token."""

    num_tokens: int
    time_to_first_token: float
    tokens_per_second: float | None
    weight_bytes: int
    bandwidth: float

    @property
    def weights_per_second(self) -> float | None:
        """Bytes of weights read a second."""
        return None if self.tokens_per_second is None else self.tokens_per_second * self.weight_bytes

    @property
    def bandwidth_share(self) -> float | None:
        """The part of the machine's bandwidth that reading weights reached; 1 is the floor of batch 1."""
        return None if self.weights_per_second is None else self.weights_per_second / self.bandwidth

    def as_dict(self) -> dict[str, float | int | None]:
        """For JSON, units in the names."""
        return {
            "num_tokens": self.num_tokens,
            "time_to_first_token_s": self.time_to_first_token,
            "tokens_per_second": self.tokens_per_second,
            "weights_bytes_per_second": self.weights_per_second,
            "bandwidth_bytes_per_second": self.bandwidth,
            "bandwidth_share": self.bandwidth_share,
        }

    def __str__(self) -> str:
        """One line for a terminal."""
        tokens = f"{self.num_tokens} token{'s' * (self.num_tokens != 1)}"
        first = f"first token after {self.time_to_first_token:.2f} s"
        if self.tokens_per_second is None or self.weights_per_second is None or self.bandwidth_share is None:
            return f"{tokens}, {first}"
        reads = f"weights read at {self.weights_per_second / 1e9:.3g} GB/s"
        share = f"{self.bandwidth_share:.0%} of this machine's {self.bandwidth / 1e9:.3g} GB/s"
        return f"{tokens}, {self.tokens_per_second:.1f} tokens/s, {first}, {reads}: {share}"
