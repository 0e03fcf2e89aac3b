"""Rotary position embeddings (Su et al., 2021): the angles by which a query or key is turned, and their table.

Everything is float32 in the order in which Hugging Face computes it: at position 100,000 another order of the same
formula is already 0.004 away in the angle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

ROPE_TYPES = ("default", "llama3", "linear")


@dataclass(frozen=True)
class RopeConfig:
    """theta: the base of the frequencies. rope_type: "default", "linear" (all divided by factor) or "llama3".

    llama3 (Llama 3.1): wavelengths over original_max_position_embeddings / low_freq_factor are stretched by factor,
    those under original_max_position_embeddings / high_freq_factor stay, those between are blended.
    """

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def inv_freq(self, head_dim: int) -> np.ndarray:
        """Radians a position for each of the D/2 pairs: theta^(-2i/D), scaled. (D/2,) float32."""
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        freq = np.float32(1.0) / np.float32(self.theta) ** exponents
        if self.rope_type == "linear":
            return freq / np.float32(self.factor)
        return self._stretch(freq) if self.rope_type == "llama3" else freq

    def _stretch(self, freq: np.ndarray) -> np.ndarray:
        context, low, high = self.original_max_position_embeddings, self.low_freq_factor, self.high_freq_factor
        factor = np.float32(self.factor)
        # PyTorch computes number / tensor as number * (1 / tensor): one rounding more, kept here
        wavelength = np.float32(2 * math.pi) * (np.float32(1.0) / freq)
        blend = (np.float32(context) * (np.float32(1.0) / wavelength) - np.float32(low)) / np.float32(high - low)
        blended = (np.float32(1.0) - blend) * freq / factor + blend * freq
        return np.where(
            wavelength > np.float32(context / low),
            freq / factor,
            np.where(wavelength < np.float32(context / high), freq, blended),
        )


def rope_table(rope: RopeConfig, head_dim: int, num_positions: int) -> np.ndarray:
    """Cosines in the first D/2 columns, sines in the rest: (num_positions, D) float32, a row a position."""
    positions = np.arange(num_positions, dtype=np.float32)
    angles = positions[:, None] * rope.inv_freq(head_dim)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
