"""One hour of a series as bytes: int32, little-endian, 60 minutes of each counter after 60 minutes of milliseconds that were read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MINUTES = 60
Block = NDArray[Any]  # (1 + counters, minutes)


def summed(rows: Iterable[tuple[int, float, Sequence[int] | NDArray[Any]]], counters: int) -> Block:
    """A block of (minute of the hour, seconds read, counts). Rows of one minute add up: each writer counted its own seconds."""
    block = np.zeros((1 + counters, MINUTES), np.int64)
    for minute, known_s, counts in rows:
        block[0, minute] += round(known_s * 1000)
        block[1:, minute] += np.asarray(counts, np.int64)
    return block


def packed(block: Block) -> bytes:
    """Raises OverflowError for a value that int32 cannot hold."""
    if block.max(initial=0) > np.iinfo(np.int32).max:
        raise OverflowError("a counter of one minute is over 2,147,483,647")
    return block.astype("<i4").tobytes()


def unpacked(data: bytes) -> Block:
    return np.frombuffer(data, "<i4").reshape(-1, MINUTES)
