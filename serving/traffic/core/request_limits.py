"""Time limits of a request: in all, and for one attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: No user waits for longer than this, in seconds.
LONGEST_S = 600.0


@dataclass(frozen=True)
class Limits:
    """How long a user waits in all, and one attempt may take, in seconds."""

    timeout_s: float = 10.0
    attempt_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.attempt_timeout_s <= self.timeout_s <= LONGEST_S:
            raise ValueError(
                f"a time-out of {self.timeout_s} s with {self.attempt_timeout_s} s for one attempt cannot be kept; "
                f"use 0 < attempt ≤ whole ≤ {LONGEST_S:.0f}"
            )


#: Those of an installation that sets none.
USUAL_LIMITS = Limits()


def limits_stated(objectives: Mapping[str, Any], default: Limits) -> Limits:
    """Time limits of a model with these objectives; `default` are the installation's. Raises TypeError and ValueError.

    A model that states either gets the other derived from it. A whole has room for two attempts, else a candidate
    that hangs would leave stable too little time to answer. And the time of an attempt grows by half of the whole's
    excess over the installation's: with a whole of 600 s and attempts of 2 s, each longer request would count as late and
    run twice.
    """
    whole, attempt = objectives.get("timeout_s"), objectives.get("attempt_timeout_s")
    if whole is None:
        whole = min(max(default.timeout_s, 2 * float(attempt or 0)), LONGEST_S)
    if attempt is None:
        roomy = default.attempt_timeout_s + max(0.0, float(whole) - default.timeout_s) / 2
        attempt = min(roomy, float(whole))
    return Limits(float(whole), float(attempt))
