"""Other batchings at a few rates: which are tried, for how long, and what of their differences can be told from chance.

Each is sent the very same requests at the very same instants, so that it is compared with the release's own second by second
and request by request. The release's own comes first, and once more at the end: where these two differ, it was the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.core.variants import Batching
from validators.core import beta
from validators.core.load import LoadSummary
from validators.core.sweep_policy import LOAD_SHARE, most_batchings, run_s

#: A run is cut into so many parts, whose differences are taken for independent.
_PARTS = 10


@dataclass(frozen=True)
class SweepPlan:
    """What is tried, the release's own first and last; at which shares of the proven rate; and for how many seconds."""

    batchings: tuple[Batching, ...]
    shares: tuple[float, ...]
    budget_s: float
    run_s: int  # each run
    start_s: float  # for a server to come up

    def last_begin_s(self, at: int) -> float:
        """After so many seconds this batching would no longer be done in time, or would leave none for the own, again."""
        loads_s = self.run_s * len(self.shares)
        is_last = at == len(self.batchings) - 1
        return self.budget_s - loads_s - (0.0 if is_last else self.start_s + loads_s)


def plan_of(section: Mapping[str, Any], serving: Mapping[str, Any]) -> SweepPlan:
    """The sweep that a policy's `capacity.sweep` asks of a release with this `serving`."""
    own = Batching.of(serving)
    delays = section["max_queue_delay_us"] or [own.max_queue_delay_us]
    sizes = section["max_batch_size"] or [own.max_batch_size]
    others = dict.fromkeys(Batching(size, delay) for size in sizes for delay in delays)
    others.pop(own, None)
    shares = tuple(sorted(section["of_proven"]))
    slot_s = float(section["budget_s"]) / most_batchings(section)
    return SweepPlan((own, *others, own), shares, float(section["budget_s"]), run_s(section), slot_s * (1 - LOAD_SHARE))


@dataclass(frozen=True)
class Point:
    """One batching at one rate. `took_ms`: of each request by its place, NaN for one that failed; `limited`: by the generator."""

    rate_per_s: float
    summary: LoadSummary
    took_ms: npt.NDArray[np.float64]
    stages: Mapping[str, float] | None = None
    limited: str = ""


@dataclass(frozen=True)
class Tried:
    """One batching: what was measured at each rate in turn, or `why` it was not."""

    batching: Batching
    points: tuple[Point, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Difference:
    """From `low` to `high` at the confidence that was asked."""

    value: float
    low: float
    high: float

    @property
    def is_seen(self) -> bool:
        return self.low > 0 or self.high < 0

    def as_json(self) -> dict[str, float]:
        return {name: round(getattr(self, name), 4) for name in ("value", "low", "high")}


def difference(ours: Sequence[float], theirs: Sequence[float], *, confidence: float) -> Difference | None:
    """The mean of ours less theirs, pair by pair, two-sided; None without two parts. A part with a NaN of either is left out.

    Source: Student's t over the means of successive parts (batch means; Law and Kelton, Simulation Modeling and Analysis, 9.5).
    """
    pairs = np.asarray(ours, float) - np.asarray(theirs, float)
    pairs = pairs[~np.isnan(pairs)]
    parts = np.array([part.mean() for part in np.array_split(pairs, min(_PARTS, len(pairs)))] if len(pairs) else [])
    if len(parts) < 2:
        return None
    half = _t_quantile(confidence, len(parts) - 1) * float(parts.std(ddof=1)) / math.sqrt(len(parts))
    value = float(pairs.mean())
    return Difference(value, value - half, value + half)


def _t_quantile(confidence: float, freedom: int) -> float:
    """The t within which Student's distribution lies with this probability: t² = freedom · B / (1 − B), B ~ Beta(1/2, freedom/2)."""
    at = beta.quantile(confidence, 0.5, freedom / 2)
    return math.sqrt(freedom * at / (1 - at))


def as_evidence(tried: Sequence[Tried], plan: SweepPlan, *, confidence: float) -> dict[str, Any]:
    """What the report keeps: a row for each batching, and what it comes to. All comparisons share the confidence (Bonferroni)."""
    count = (len(tried) - 1) * len(plan.shares) * 2
    each = 1 - (1 - confidence) / max(1, count)
    rows = [_row(one, tried[0], confidence=each) for one in tried]
    best, alike, says = _advice(rows, tried, confidence=each)
    return {
        "budget_s": plan.budget_s,
        "seconds": plan.run_s,
        "of_proven": list(plan.shares),
        "confidence": confidence,
        "rows": rows,
        "best": best,
        "alike": alike,
        "says": says,
    }


def _row(one: Tried, own: Tried, *, confidence: float) -> dict[str, Any]:
    points = []
    for at, point in enumerate(one.points):
        summary, stages = point.summary, point.stages or {}
        more = later = None
        if one is not own and at < len(own.points) and not (point.limited or own.points[at].limited):
            more = difference(_good(point), _good(own.points[at]), confidence=confidence)
            later = difference(list(point.took_ms), list(own.points[at].took_ms), confidence=confidence)
        total_ms = stages.get("total_ms")
        points.append(
            {
                "rate_per_s": round(point.rate_per_s, 3),
                "requests": summary.requests,
                "over": summary.over,
                "errors": summary.errors,
                "goodput_per_s": summary.goodput_per_s,
                "latency_ms": {name: summary.latency_ms.get(name) for name in ("p50", "p95", "p99")},
                "mean_batch": stages.get("mean_batch"),
                "queue_frac": round(stages["queue_ms"] / total_ms, 4) if total_ms else None,
                "busy_frac": stages.get("busy_frac"),
                "lag_p99_ms": summary.lag_p99_ms,
                "limited": point.limited,
                "more_per_s": more.as_json() if more else None,
                "later_ms": later.as_json() if later else None,
            }
        )
    return {
        "max_batch_size": one.batching.max_batch_size,
        "max_queue_delay_us": one.batching.max_queue_delay_us,
        "is_own": one.batching == own.batching,
        "why": one.why,
        "points": points,
    }


def _good(point: Point) -> list[float]:
    """Answers within the objective in each second."""
    counts = zip(point.summary.sent_per_window, point.summary.over_per_window, strict=True)
    return [float(sent - over) for sent, over in counts]


def _advice(
    rows: Sequence[Mapping[str, Any]], tried: Sequence[Tried], *, confidence: float
) -> tuple[int | None, list[int], str]:
    """(the best batching's place, the places of those that could not be told from it, a sentence)."""
    own = tried[0]
    if own.why or len(tried) < 3 or tried[-1].why:
        why = own.why or tried[-1].why or "it was not measured twice"
        return None, [], f"Nothing is compared, as of the release's own batching: {why}."
    if why := _why_not_compared(rows, tried):
        return None, [], f"Nothing is compared: {why}."
    if any((found := point["more_per_s"]) and (found["low"] > 0 or found["high"] < 0) for point in rows[-1]["points"]):
        return (
            None,
            [],
            "Nothing is advised: the release's own batching, measured first and last, was not the same twice.",
        )
    others = [at for at in range(1, len(tried) - 1) if not rows[at]["why"] and not _is_worse(rows[at])]
    for step in reversed(range(len(own.points))):
        more = {at: found for at in others if (found := rows[at]["points"][step]["more_per_s"]) and found["low"] > 0}
        if more:
            best = max(more, key=lambda at: more[at]["value"])
            alike = [at for at in more if at != best and not _differs(tried[best], tried[at], step, confidence)]
            return best, alike, _advised(rows, best, alike, more[best], own.points[step].rate_per_s)
    return (
        None,
        [],
        f"No difference seen: no batching answers more within the objective than the release's own{_sooner(rows, others)}.",
    )


def _why_not_compared(rows: Sequence[Mapping[str, Any]], tried: Sequence[Tried]) -> str:
    """Why nothing can be said of the others: equal and not looked at are two things."""
    for first, again in zip(tried[0].points, rows[-1]["points"], strict=True):
        if again["more_per_s"] is None and not first.limited:
            return f"at {first.rate_per_s:.4g} requests/s the release's own batching was not measured twice"
    if not any(point["more_per_s"] for row in rows[1:-1] for point in row["points"]):
        return "no other batching was measured at a rate at which the release's own was"
    return ""


def _is_worse(row: Mapping[str, Any]) -> bool:
    return any(point["more_per_s"] and point["more_per_s"]["high"] < 0 for point in row["points"])


def _differs(one: Tried, other: Tried, step: int, confidence: float) -> bool:
    found = difference(_good(one.points[step]), _good(other.points[step]), confidence=confidence)
    return found is not None and found.is_seen


def _advised(
    rows: Sequence[Mapping[str, Any]], best: int, alike: Sequence[int], more: Mapping[str, float], rate_per_s: float
) -> str:
    also = f" Not told from it: {'; '.join(words(rows[at]) for at in alike)}." if alike else ""
    return (
        f"At {rate_per_s:.4g} requests/s {words(rows[best])} answers {more['value']:.3g} a second more within the objective than "
        f"the release's own ({more['low']:.3g} to {more['high']:.3g}).{also}"
    )


def _sooner(rows: Sequence[Mapping[str, Any]], others: Sequence[int]) -> str:
    """Which of them answers soonest on average at the greatest rate, where that is seen, and no such thing of the own, again."""
    again = rows[-1]["points"][-1]["later_ms"]
    if (
        again is None or again["low"] > 0 or again["high"] < 0
    ):  # latencies in a row hang together more than parts of a run tell
        return ""
    found = [(rows[at]["points"][-1], at) for at in others]
    seen = [
        (point["later_ms"]["value"], at) for point, at in found if point["later_ms"] and point["later_ms"]["high"] < 0
    ]
    if not seen:
        return ""
    least_ms, at = min(seen)
    rate = rows[at]["points"][-1]["rate_per_s"]
    return f"; at {rate:.4g} requests/s {words(rows[at])} answers {-least_ms:.3g} ms sooner on average"


def words(row: Mapping[str, Any]) -> str:
    return words_of(Batching(row["max_batch_size"], row["max_queue_delay_us"]))


def words_of(batching: Batching) -> str:
    """A batching as a release's `serving` states it."""
    delay_us = batching.max_queue_delay_us
    waits = "without dynamic_batching" if delay_us is None else f"max_queue_delay_us {delay_us}"
    return f"max_batch_size {batching.max_batch_size}, {waits}"
