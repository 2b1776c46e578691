"""The rate of the load gate: the policy's, else one that the server can hold.

A default rate cannot prove a release bad. So without `load.rate_per_s` the gate asks the default, but no more
than the envelope declares, or else half of the server's measured rate. docs/decisions/0041.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from validators.core.load import Attempt
from validators.core.proof import sizing

#: Of what a server answers when it always has the next request at hand. At random arrivals half of it leaves a queue of one.
SHARE: Final = 0.5
#: A load that only counts errors lasts until so many requests are due, but no longer than this, in seconds.
LEAST_REQUESTS, LONGEST_S = 16, 60.0
#: How long a server is asked to learn what it can do, in seconds; one request is asked in any case.
MEASURING_S: Final = 10.0


class RateFrom(StrEnum):
    """The source of a rate."""

    STATED = "stated"
    DEFAULT = "default"  # the server can do more
    DECLARED = "declared"
    MEASURED = "measured"


@dataclass(frozen=True)
class LoadRate:
    """A rate in requests a second, and its source. `can_per_s`: the server's own rate, if known."""

    per_s: float
    source: RateFrom
    can_per_s: float | None = None

    @property
    def sentence(self) -> str:
        """The source of the rate, without a full stop."""
        at = f"{self.per_s:.3g}/s"
        if self.source is RateFrom.STATED:
            return f"the rate is {at}, the policy's load.rate_per_s"
        absent = "the policy states no load.rate_per_s"
        if self.source is RateFrom.DEFAULT:
            return f"the rate is {at}, the default, as {absent}"
        if self.source is RateFrom.DECLARED:
            return f"the rate is {at}, as the envelope declares {self.can_per_s:.3g}/s and {absent}"
        return f"the rate is {at}, half of the {self.can_per_s:.3g}/s that it answered before, as {absent}"


def rate_of(policy: Mapping[str, Any], *, declared: float | None, measured: float | None) -> LoadRate:
    """The rate of a load section. `declared`, `measured`: requests a second that the server can do, if known."""
    most = float(policy["rate_per_s"])
    if policy.get("rate_from") != RateFrom.MEASURED:
        return LoadRate(most, RateFrom.STATED)
    if declared is not None:
        return LoadRate(min(most, declared), RateFrom.DECLARED if declared < most else RateFrom.DEFAULT, declared)
    if measured is None or SHARE * measured >= most:
        return LoadRate(most, RateFrom.DEFAULT, measured)
    return LoadRate(SHARE * measured, RateFrom.MEASURED, measured)


def probes_of(first_s: float, *, at_once: int) -> int:
    """Number of further requests that measure a server, after a first of `first_s` seconds; 0 if the first is enough."""
    return 0 if at_once * first_s > MEASURING_S else max(2 * at_once, min(64, math.ceil(1 / max(first_s, 0.001))))


def answered_per_s(attempts: Sequence[Attempt]) -> float | None:
    """Answers a second until the last of them; None without one."""
    ends = [attempt.done_s for attempt in attempts if not attempt.error]
    return len(ends) / max(max(ends), 0.001) if ends else None


def at_rate(policy: Mapping[str, Any], rate: LoadRate, *, errors_only_s: float) -> dict[str, Any]:
    """The load section at this rate. Default durations follow the rate."""
    out = {**policy, "rate_per_s": rate.per_s}
    if rate.per_s == policy["rate_per_s"]:
        return out
    if policy["slo_ms"] is None:
        if policy["duration_s"] == errors_only_s:
            out["duration_s"] = min(LONGEST_S, max(errors_only_s, LEAST_REQUESTS / rate.per_s))
            out["max_duration_s"] = max(policy["max_duration_s"], out["duration_s"])
        return out
    usual_s = sizing({**policy, "duration_s": None, "max_duration_s": None}).deadline_s
    if policy["duration_s"] is None and policy["max_duration_s"] == usual_s:
        out["max_duration_s"] = sizing({**out, "max_duration_s": None}).deadline_s
    return out
