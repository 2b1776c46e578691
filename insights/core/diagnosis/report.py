"""An explanation in the order of an on-call person's questions. It ranks dimensions, stages, resources and changes; it knows no causes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from insights.core.diagnosis.contribution import Growth, Part, Parts, Without, growth_of, parts_of
from insights.core.diagnosis.series import Counts, Mask, Window
from insights.core.diagnosis.shift import DAY_MIN, Shape, Shift, find_shift
from insights.core.diagnosis.split import Moved, Near, StagePart, moved, near, stages_of

#: A stage or a change of mix is named if it explains so much of the shift.
MOST_OF_IT: Final = 0.5
AT_CAPACITY: Final = 0.9
MOST_CHANGES: Final = 5
#: Within hours, latency wanders by itself. A smaller shift than this needs a second source that moved with it.
SURE_RATIO: Final = {Shape.STEP: 3.0, Shape.RISING: 10.0}
#: A shift that only one value has must stand out of its counts so much.
SURE_DEVIATIONS: Final = 5.0
SUPPORT: Final = frozenset({"who", "mix", "stage", "resource"})


@dataclass(frozen=True)
class Hypothesis:
    """`kind`: who, mix, volume, everyone, stage, resource or change. `score` in [0, 1] ranks; it is no probability."""

    kind: str
    subject: str
    score: float
    evidence_for: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    next_step: str = ""


@dataclass(frozen=True)
class Load:
    """Requests a second before and after; `at_capacity` is None if the capacity is unknown."""

    before_per_s: float
    now_per_s: float
    capacity_per_s: float | None
    at_capacity: bool | None


@dataclass(frozen=True)
class Diagnosis:
    """`signal`: what shifted. Each part is empty if nothing shifted or its source is in `missing`."""

    signal: str
    shift: Shift
    hypotheses: tuple[Hypothesis, ...] = ()
    who: tuple[Parts, ...] = ()
    growth: tuple[Growth, ...] = ()
    stages: tuple[StagePart, ...] = ()
    resources: tuple[Moved, ...] = ()
    changes: tuple[Near, ...] = ()
    load: Load | None = None
    missing: tuple[str, ...] = ()


def diagnose(window: Window, seed: int = 0) -> Diagnosis:
    """Explains the strongest shift of the window's signals. The same window and seed give the same answer."""
    shifts = {name: find_shift(bad, window.whole.total, seed) for name, bad in window.whole.bad.items()}
    if window.whole.p99_ms is not None and "slow" not in shifts:
        shifts["p99"] = find_shift(window.whole.p99_ms, None, seed)
    if not shifts:
        return Diagnosis("", Shift(Shape.UNKNOWN, why="counts of requests"), missing=window.missing)
    signal = max(shifts, key=lambda name: _strength(shifts[name]))
    shift = shifts[signal]
    if shift.shape is Shape.NONE:
        signal, shift = _of_a_value(window, seed) or (signal, shift)
    if shift.shape not in (Shape.STEP, Shape.RISING):
        return Diagnosis(signal, shift, missing=window.missing)
    before, now = _masks(shift, len(window.whole.total), window.begin_s)
    who = [parts_of(name, values, signal, before, now) for name, values in window.by.items()] if signal != "p99" else []
    parts = sorted((one for one in who if one is not None), key=lambda one: -_top(one))
    grown = [growth_of(name, values, before, now) for name, values in window.by.items()]
    growth = sorted((one for one in grown if one is not None), key=lambda one: -one.score)
    stages = stages_of(_timed(window, parts), before, now)
    resources = moved(window.gauges, before, now)
    places = [f"{one.dimension} {part.value}" for one in parts for part in one.parts if part.explains]
    changes = near(window.changes, shift, window.begin_s, places)[:MOST_CHANGES]
    found = Diagnosis(
        signal, shift, (), tuple(parts), tuple(growth), tuple(stages), tuple(resources), tuple(changes),
        _load(window, before, now), window.missing,
    )  # fmt: skip
    ranked = _hypotheses(found, window, before, now)
    if (
        shift.width_min < 10
        and shift.ratio < SURE_RATIO[shift.shape]
        and not any(one.kind in SUPPORT for one in ranked)
    ):
        return Diagnosis(signal, replace(shift, shape=Shape.NONE), missing=window.missing)
    return replace(found, hypotheses=ranked)


def _of_a_value(window: Window, seed: int) -> tuple[str, Shift] | None:
    """A shift of one value's share against all others of its dimension, if the whole hides it; the strongest."""
    found: list[tuple[str, Shift]] = []
    for dimension, values in window.by.items():
        for name, own in values.items():
            others = [counts for other, counts in values.items() if other != name]
            for signal, bad in own.bad.items():
                if others:
                    total = np.nansum([one.total for one in others], axis=0)
                    rest = np.nansum([one.bad[signal] for one in others], axis=0), total
                    shift = find_shift(bad, own.total, seed, rest)
                    if shift.shape in (Shape.STEP, Shape.RISING):
                        parts = parts_of(dimension, values, signal, *_masks(shift, len(bad), window.begin_s))
                        own_parts = [one for one in parts.parts if one.value == name] if parts else []
                        if any(one.explains and one.deviations >= SURE_DEVIATIONS for one in own_parts):
                            found.append((signal, shift))
    return max(found, key=lambda one: one[1].ratio) if found else None


def _strength(shift: Shift) -> tuple[bool, bool, float]:
    """A shift before none, none before "cannot tell"; then the larger."""
    return shift.shape in (Shape.STEP, Shape.RISING), shift.shape is Shape.NONE, shift.ratio


def _masks(shift: Shift, minutes: int, begin_s: float) -> tuple[Mask, Mask]:
    """Minutes before the shift's interval and after it; of a ramp its last third. Both have the same hours of the day, if possible."""
    at = np.arange(minutes)
    before = (at >= shift.first) & (at < min(shift.low, shift.at))
    now = at >= shift.high
    if shift.shape is Shape.RISING:
        now &= at >= shift.at + (minutes - shift.at) * 2 / 3
    if now.sum() < 3:
        now = at >= min(shift.at, minutes - 3)
    if before.sum() < 3:
        before = (at >= shift.first) & (at < max(shift.at, shift.first + 3))
    if before.sum() >= DAY_MIN:
        hour = ((begin_s // 60 + at) % DAY_MIN) // 60
        alike = before & np.isin(hour, np.unique(hour[now]))
        before = alike if alike.sum() >= 30 else before
        now = now & np.isin(hour, np.unique(hour[before]))
    return before, now


def _top(parts: Parts) -> float:
    return max((part.score for part in parts.parts if part.explains), default=0.0)


def _timed(window: Window, parts: list[Parts]) -> list[Counts]:
    """Counts with stages: of the value that explains the shift, else of each replica, else of the whole."""
    for one in parts:
        chosen = [window.by[one.dimension][part.value] for part in one.parts if part.explains]
        if chosen and all(counts.stages for counts in chosen):
            return chosen
    replicas = list(window.by.get("replica", {}).values())
    return replicas if any(one.stages for one in replicas) else [window.whole]


def _load(window: Window, before: Mask, now: Mask) -> Load:
    first, then = (float(np.nanmean(window.whole.total[mask])) / 60 for mask in (before, now))
    limit = window.capacity_per_s
    return Load(first, then, limit, None if limit is None else then >= AT_CAPACITY * limit)


def _hypotheses(found: Diagnosis, window: Window, before: Mask, now: Mask) -> tuple[Hypothesis, ...]:
    ranked = [
        *(one for parts in found.who for one in _of_dimension(parts, window, found.signal, before, now)),
        *(_of_growth(one) for one in found.growth[:1]),
        *(_of_stage(one) for one in found.stages[:1] if one.part >= MOST_OF_IT),
        *(_of_resource(one) for one in found.resources[:3]),
        *(_of_change(one, window, found.shift) for one in found.changes),
    ]
    if found.who and not any(one.kind in ("who", "mix") for one in ranked):
        names = tuple(f"{one.dimension}: no value exceeds its share of requests" for one in found.who)
        ranked.append(Hypothesis("everyone", "every value alike", 0.5, names, unknown=found.missing))
    return tuple(sorted(ranked, key=lambda one: -one.score))


def _of_dimension(parts: Parts, window: Window, signal: str, before: Mask, now: Mask) -> list[Hypothesis]:
    if parts.mix >= MOST_OF_IT:
        grown = max(parts.parts, key=lambda part: part.mix + part.share_now - part.share_before)
        moved_from = f"share of requests {grown.share_before:.0%} → {grown.share_now:.0%}"
        text = f"The mix explains {parts.mix:.0%} of the shift; {moved_from}."
        return [Hypothesis("mix", f"{parts.dimension} {grown.value}", min(1.0, parts.mix), (text,))]
    chosen = [part for part in parts.parts if part.explains]
    return [_of_part(parts.dimension, part, window, signal, before, now) for part in chosen]


def _of_part(
    dimension: str, part: Part, window: Window, signal: str, before: Mask, now: Mask
) -> Hypothesis:  # fmt: skip
    part_text = f"{part.mix + part.rate:.0%} of the shift with {part.share_now:.0%} of the requests"
    rates = f"bad share {part.rate_before:.2%} → {part.rate_now:.2%}"
    left = f"without it the shift is {'gone' if part.without is Without.GONE else 'about half'}"
    against = (f"a part of the shift is left without {part.value}",) if part.without is Without.HALF else ()
    within, unknown = _one_level_below(dimension, part.value, window, signal, before, now)
    return Hypothesis(
        "who", f"{dimension} {part.value}", min(1.0, part.score), (part_text, rates, left, *within), against, unknown
    )


def _one_level_below(
    dimension: str, value: str, window: Window, signal: str, before: Mask, now: Mask
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Evidence from another dimension within the value; and the dimensions without crossed counts."""
    texts: list[str] = []
    crossed = [pair for pair in window.crossed if pair[0] == dimension]
    for pair in crossed:
        own = {values[1]: counts for values, counts in window.crossed[pair].items() if values[0] == value}
        parts = parts_of(pair[1], own, signal, before, now)
        if parts is not None and parts.mix >= MOST_OF_IT:
            texts.append(f"within it, the mix of {pair[1]} explains {parts.mix:.0%}")
        elif parts is not None:
            texts += [f"within it, {pair[1]} {one.value} carries it" for one in parts.parts[:1] if one.explains]
    others = [one for one in window.by if one != dimension and (dimension, one) not in crossed]
    return tuple(texts), tuple(f"{dimension} by {one}: no crossed counts" for one in others)


def _of_growth(one: Growth) -> Hypothesis:
    ratio = f"{one.ratio:.1f} times the requests of before" if np.isfinite(one.ratio) else "no request before"
    subject = f"{one.dimension} {one.value}" if one.value else "every value alike"
    return Hypothesis("volume", subject, max(one.score * 0.8, 0.3), (ratio,))


def _of_stage(one: StagePart) -> Hypothesis:
    text = f"{one.before_ms:.1f} ms → {one.now_ms:.1f} ms, {min(one.part, 9.99):.0%} of the change of the mean"
    return Hypothesis("stage", one.stage, min(1.0, one.part) * 0.9, (text,))


def _of_resource(one: Moved) -> Hypothesis:
    text = f"median {one.before:.4g} → {one.now:.4g}, {min(one.deviations, 999):.0f} deviations"
    return Hypothesis("resource", one.resource, one.deviations / (one.deviations + 20), (text,))


def _of_change(one: Near, window: Window, shift: Shift) -> Hypothesis:
    minutes = one.distance_s / 60
    text = "within the interval of the shift" if minutes == 0 else f"{minutes:.0f} min before the interval"
    at = datetime.fromtimestamp(one.change.at_s, UTC)
    against = () if minutes == 0 else ("the shift came later than the change",)
    width = max(shift.high - shift.low, 5.0)
    step = f"sluicegate api GET /events verb=={one.change.verb}"
    evidence = (f"{at:%Y-%m-%d %H:%M:%S} UTC: {text}", *((one.change.facts,) if one.change.facts else ()))
    return Hypothesis(
        "change", f"{one.change.verb} {one.change.subject}", 0.85 / (1 + minutes / width), evidence, against, (), step
    )


#: Signal → what users get.
_WORDS: Final = {
    "slow": "the share of slow requests",
    "errors": "the share of errors",
    "refused": "the share of refused requests",
    "p99": "the 99th percentile of latency",
}


def sentence(found: Diagnosis, begin_s: float) -> str:
    """The answer in one sentence. Instants are UTC."""
    shift, what = found.shift, _WORDS.get(found.signal, found.signal)
    if shift.shape is Shape.UNKNOWN:
        return f"Cannot tell. Missing: {shift.why}."
    if shift.shape is Shape.NONE:
        return "No shift."
    at, low, high = (datetime.fromtimestamp(begin_s + 60 * one, UTC) for one in (shift.at, shift.low, shift.high))
    kind = "A step" if shift.shape is Shape.STEP else "Rising"
    return f"{kind} since {at:%Y-%m-%d %H:%M} ({low:%H:%M} to {high:%H:%M}) in {what}: {shift.ratio:.1f} times as high."
