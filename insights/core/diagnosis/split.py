"""Which stage and which resource changed together with a shift, and which events lie near it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from insights.core.diagnosis.series import Array, Change, Counts, Mask
from insights.core.diagnosis.shift import Shift

LEAST_REQUESTS: Final = 100
#: What the gateway saw, and what of it no stage of the server explains.
TOTAL, OUTSIDE = "total", "outside"
#: A reading changed if it moved by so many robust deviations of its minutes before, and by this share.
LEAST_DEVIATIONS, LEAST_MOVE = 6.0, 0.1
#: An event may precede its effect by so many seconds, and follow the interval by a clock's error only.
LOOK_BACK_S, LATE_S = 3600.0, 60.0


@dataclass(frozen=True)
class StagePart:
    """Mean milliseconds of a stage before and after; `part`: of the change of the whole."""

    stage: str
    before_ms: float
    now_ms: float
    part: float


@dataclass(frozen=True)
class Moved:
    """A resource whose reading changed: medians, and the move in robust deviations."""

    resource: str
    before: float
    now: float
    deviations: float


@dataclass(frozen=True)
class Near:
    """A change near the shift; `distance_s` from its interval, 0 inside."""

    change: Change
    distance_s: float


def stages_of(counts: Sequence[Counts], before: Mask, now: Mask) -> list[StagePart]:
    """The largest part first, over the replicas' means; empty if unknown or if the mean did not change by 5 %."""
    found: list[tuple[float, dict[str, tuple[float, float]]]] = []
    for one in counts:
        known = np.isfinite(one.total)
        for stage in one.stages.values():
            known = known & np.isfinite(stage)
        sizes = [float(one.total[known & mask].sum()) for mask in (before, now)]
        if one.stages and min(sizes) >= LEAST_REQUESTS:
            means = {
                name: (float(value[known & before].sum()) / sizes[0], float(value[known & now].sum()) / sizes[1])
                for name, value in one.stages.items()
            }
            if TOTAL in means:
                server = [sum(pair[i] for name, pair in means.items() if name != TOTAL) for i in (0, 1)]
                means[OUTSIDE] = (means[TOTAL][0] - server[0], means[TOTAL][1] - server[1])
            found.append((sizes[1], means))
    if not found:
        return []
    weight = sum(size for size, _ in found)
    names = sorted({name for _, means in found for name in means} - {TOTAL})
    mean = {
        name: [sum(size * means.get(name, (0, 0))[i] for size, means in found) / weight for i in (0, 1)]
        for name in names
    }
    whole = [sum(pair[i] for pair in mean.values()) for i in (0, 1)]
    if abs(whole[1] - whole[0]) < 0.05 * abs(whole[0]):
        return []
    parts = [StagePart(one, a, b, (b - a) / (whole[1] - whole[0])) for one, (a, b) in mean.items()]
    return sorted(parts, key=lambda part: -part.part)


def moved(gauges: Mapping[str, Array], before: Mask, now: Mask) -> list[Moved]:
    """Resources that changed, the largest move first."""
    found = []
    for name, values in gauges.items():
        first, then = (values[mask & np.isfinite(values)] for mask in (before, now))
        if min(len(first), len(then)) < 3:
            continue
        a, b = float(np.median(first)), float(np.median(then))
        spread = max(1.4826 * float(np.median(np.abs(first - a))), 0.02 * abs(a), 1e-9)
        deviations = abs(b - a) / spread
        if deviations >= LEAST_DEVIATIONS and abs(b - a) >= LEAST_MOVE * max(abs(a), 1e-9):
            found.append(Moved(name, a, b, deviations))
    return sorted(found, key=lambda one: -one.deviations)


def near(changes: Sequence[Change], shift: Shift, begin_s: float, places: Sequence[str] = ()) -> list[Near]:
    """Events before the shift or within its interval, the nearest first; of equal ones, those about `places`."""
    low, high, at = (begin_s + 60 * one for one in (shift.low, shift.high, shift.at))
    found = []
    for change in changes:
        if low - LOOK_BACK_S <= change.at_s <= high + LATE_S:
            found.append(Near(change, max(0.0, low - change.at_s, change.at_s - high)))
    return sorted(
        found,
        key=lambda one: (one.distance_s, one.change.subject not in places, abs(one.change.at_s - at), -one.change.at_s),
    )
