"""When the watch reads next."""

from __future__ import annotations


def left_s(at: float, every_s: float) -> float:
    """Seconds to the next multiple of `every_s`, so that each minute begins with a reading; never less than half of that."""
    left = every_s - at % every_s
    return left if left > every_s / 2 else left + every_s
