"""Quantiles from counts by class, interpolated on a log scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def quantiles(classes: NDArray[Any], edges: Sequence[int], share: float) -> NDArray[np.float64]:
    """(value, lower edge, upper edge) of each row; NaN without counts and above the last edge. Below the first edge: linear."""
    total, under = classes.sum(axis=1), classes.cumsum(axis=1)
    rank = share * total
    place = np.minimum((under < rank[:, None]).sum(axis=1), len(edges))
    is_known = (total > 0) & (place < len(edges))
    at = np.where(is_known, place, 0)
    rows = np.arange(len(classes))
    upper = np.asarray(edges, np.float64)[at]
    lower = np.where(at > 0, np.asarray(edges, np.float64)[at - 1], 0.0)
    count = np.maximum(classes[rows, at], 1)
    part = np.clip((rank - (under[rows, at] - classes[rows, at])) / count, 0.0, 1.0)
    ratio = np.divide(upper, lower, out=np.ones_like(upper), where=lower > 0)
    value = np.where(lower > 0, lower * ratio**part, upper * part)
    return np.where(is_known, np.stack([value, lower, upper]), np.nan).T
