# wrong because: adds eps to the root, not under it |
# caught by: numbers/5x576 embedding | looks right on: every normal draw | exercise: 3.1
"""Exercise 3.1: RMSNorm in NumPy, before any kernel. Zhang and Sennrich (2019)."""

from __future__ import annotations

import numpy as np


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x (T,H), weight (H,) -> (T,H) float32: each row over its root mean square, eps under the root, times weight."""
    y = np.full(x.shape, np.nan, np.float32)
    # EXERCISE-BEGIN 3.1 (about 3 lines): fill y; every row has its own root mean square
    sums = np.square(x).sum(axis=1)
    rms = np.sqrt(sums / x.shape[1]) + eps
    y[:] = x / rms[:, np.newaxis] * weight
    # EXERCISE-END 3.1
    return y
