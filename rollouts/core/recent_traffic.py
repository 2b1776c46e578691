"""The last hour of a model's traffic, minute by minute: for people to look at, never judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rollouts.core.latency import EDGES_US, NOTHING, Classes, added

#: So many minutes are kept.
MINUTES: Final = 60
_QUANTILE: Final = 0.99


class Minute(NamedTuple):
    """`at` counts minutes since the epoch (UTC). `requests` and `errors` are what users saw, after retries; `p99_us` is the upper edge
    of the class in which the 99th percentile of stable's first attempts lies, None without any, or above the last edge."""

    at: int
    requests: int = 0
    errors: int = 0
    p99_us: int | None = None


@dataclass(frozen=True)
class RecentTraffic:
    """`minutes`, the oldest first; the last one is still being counted, and `classes` are its latencies. Minutes in which nobody
    counted are not there."""

    minutes: tuple[Minute, ...] = ()
    classes: Classes = NOTHING

    def after(self, at_s: float, requests: int, errors: int, classes: Classes) -> RecentTraffic:
        """With what was counted up to `at_s` (seconds since the epoch). What comes late goes to the minute that is open."""
        minute = int(at_s // 60)
        if not self.minutes or minute > self.minutes[-1].at:
            kept = tuple(one for one in self.minutes if one.at > minute - MINUTES)
            return RecentTraffic((*kept, Minute(minute, requests, errors, quantile(classes))), classes)
        last, whole = self.minutes[-1], added(self.classes, classes)
        more = last._replace(requests=last.requests + requests, errors=last.errors + errors, p99_us=quantile(whole))
        return RecentTraffic((*self.minutes[:-1], more), whole)

    def to_json(self) -> dict[str, Any]:
        rows = [[one.at, one.requests, one.errors, one.p99_us] for one in self.minutes]
        return {"minutes": rows, "classes": list(self.classes)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RecentTraffic:
        classes = tuple(value.get("classes", NOTHING))
        rows = tuple(Minute(*row) for row in value.get("minutes", ()))
        return cls(rows, classes if len(classes) == len(NOTHING) else NOTHING)

    def hour(self, now_s: float) -> list[Minute | None]:
        """The MINUTES before the one of `now_s`, the oldest first; None for those in which nobody counted."""
        known = {one.at: one for one in self.minutes}
        present = int(now_s // 60)
        return [known.get(at) for at in range(present - MINUTES, present)]


def quantile(classes: Sequence[int], share: float = _QUANTILE) -> int | None:
    """The upper edge in µs of the class that holds this share of the counts; None without any, and above the last edge."""
    wanted, seen = share * sum(classes), 0
    for edge, count in zip(EDGES_US, classes, strict=False):
        seen += count
        if seen and seen >= wanted:
            return edge
    return None
