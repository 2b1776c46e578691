"""The last hour of a model's traffic, minute by minute: for people to look at, never judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rollouts.core.latency import EDGES_US, NOTHING, Classes, added

#: So many minutes are kept.
MINUTES: Final = 60
#: The last seconds are kept apart in spans of this length, for what happens now; so many spans are kept.
SPAN_S: Final = 5
SPANS: Final = 6
#: Counts that are older than this, in seconds, are not shown as present ones. The engine writes them every 5 s.
NOW_WITHIN_S: Final = 10
#: A model's rate of requests and share of errors are averages over about this time.
RATE_MEMORY_S: Final = 300.0
_QUANTILE: Final = 0.99


class Minute(NamedTuple):
    """`at` counts minutes since the epoch (UTC). `requests`, `errors` and `shed` are what users saw, after retries; a request that was
    shed is no error. `p99_us` is the upper edge of the class that holds the 99th percentile of stable's answers to first attempts, None
    without any, or above the last edge."""

    at: int
    requests: int = 0
    errors: int = 0
    p99_us: int | None = None
    shed: int = 0


class Span(NamedTuple):
    """Requests in some seconds that began at `at` (seconds since the epoch, UTC); the rest as `Minute` has it."""

    at: int
    requests: int = 0
    errors: int = 0
    shed: int = 0


@dataclass(frozen=True)
class RecentTraffic:
    """`minutes`, the oldest first; the last one is still being counted, and `classes` are the latencies of its answers. Minutes in which
    nobody counted are not there. `spans` are the last seconds, the oldest first; the last one is still being counted. `counted_s` is when
    all gateways were last read (seconds since the epoch, UTC), None if they never were."""

    minutes: tuple[Minute, ...] = ()
    classes: Classes = NOTHING
    spans: tuple[Span, ...] = ()
    counted_s: float | None = None

    def after(self, at_s: float, requests: int, errors: int, classes: Classes, shed: int = 0) -> RecentTraffic:
        """With the counts up to `at_s` (seconds since the epoch). Late counts go to the open minute."""
        minute = int(at_s // 60)
        spans = self._spans_after(int(at_s // SPAN_S) * SPAN_S, requests, errors, shed)
        if not self.minutes or minute > self.minutes[-1].at:
            kept = tuple(one for one in self.minutes if one.at > minute - MINUTES)
            opened = Minute(minute, requests, errors, quantile(classes), shed)
            return RecentTraffic((*kept, opened), classes, spans, at_s)
        last, whole = self.minutes[-1], added(self.classes, classes)
        more = Minute(last.at, last.requests + requests, last.errors + errors, quantile(whole), last.shed + shed)
        return RecentTraffic((*self.minutes[:-1], more), whole, spans, at_s)

    def _spans_after(self, at: int, requests: int, errors: int, shed: int) -> tuple[Span, ...]:
        if not self.spans or at > self.spans[-1].at:
            return (*self.spans[1 - SPANS :], Span(at, requests, errors, shed))
        last = self.spans[-1]
        return (*self.spans[:-1], Span(last.at, last.requests + requests, last.errors + errors, last.shed + shed))

    def now(self, now_s: float, within_s: int = 3 * SPAN_S) -> Span | None:
        """The sum of the last `within_s` seconds that were counted; None if the last count is older than NOW_WITHIN_S."""
        if not self.spans or self.counted_s is None or now_s - self.counted_s > NOW_WITHIN_S:
            return None
        last = [one for one in self.spans if one.at > self.spans[-1].at - within_s]
        counts = (sum(column) for column in zip(*(one[1:] for one in last), strict=True))
        return Span(last[0].at, *counts)

    def to_json(self) -> dict[str, Any]:
        rows = [list(one) for one in self.minutes]
        spans = [list(one) for one in self.spans]
        return {"minutes": rows, "classes": list(self.classes), "spans": spans, "counted_s": self.counted_s}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RecentTraffic:
        classes = tuple(value.get("classes", NOTHING))
        rows = tuple(Minute(*row) for row in value.get("minutes", ()))
        spans = tuple(Span(*row) for row in value.get("spans", ()))
        return cls(rows, classes if len(classes) == len(NOTHING) else NOTHING, spans, value.get("counted_s"))

    def hour(self, now_s: float) -> list[Minute | None]:
        """The MINUTES before the minute of `now_s`, oldest first; None for a minute without counts."""
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
