"""Which items to look at again."""

from __future__ import annotations

import numpy as np


def sample_of(count: int, most: int, *, seed: int = 0) -> list[int]:
    """Up to `most` positions below `count`, rising, spread evenly at random; the same for the same seed."""
    if most >= count:
        return list(range(count))
    return sorted(int(at) for at in np.random.default_rng(seed).choice(count, most, replace=False))
