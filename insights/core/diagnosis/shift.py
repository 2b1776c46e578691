"""Since when: a step or a ramp upwards in the share of bad requests, with its interval. A fall is no shift."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

import numpy as np

from insights.core.diagnosis.series import Array

MOST_P: Final = 0.002
#: Smallest change of the odds of a bad request. Latency wanders within minutes: a window under 12 hours needs a larger one, and so many
#: deviations of the means of ten bins.
LEAST_RATIO, LEAST_RATIO_SHORT, SHORT_MIN, WANDERS = 1.1, 1.5, 180, 3.0
PERMUTATIONS: Final = 999
RESAMPLES: Final = 200
DAY_MIN: Final = 1440
#: Share of minutes that must have a reading.
LEAST_KNOWN: Final = 0.7
#: Fewer requests than this in the window show nothing.
LEAST_REQUESTS: Final = 100
FEWEST_BINS: Final = 12
#: A ramp must fit so much better than a step.
RAMP_BETTER: Final = 1.05


class Shape(StrEnum):
    STEP = "step"
    RISING = "rising"
    NONE = "no_shift"
    UNKNOWN = "cannot_tell"


@dataclass(frozen=True)
class Shift:
    """`at`, `low` and `high` are minutes from the window's begin; `first` is the minute from which the test looked.

    Attributes:
        ratio: odds of a bad request after the shift, divided by those before.
        why: what is missing, for `cannot_tell`.
    """

    shape: Shape
    at: float = 0.0
    low: float = 0.0
    high: float = 0.0
    first: int = 0
    width_min: int = 1
    ratio: float = 1.0
    p: float = 1.0
    season_known: bool = False
    why: str = ""


def find_shift(bad: Array, total: Array | None, seed: int = 0, rest: tuple[Array, Array] | None = None) -> Shift:
    """The shift in the whole window, else in its last day, else in its last two hours.

    Without `total`, of the values themselves. With `rest` (bad and all other requests), against them: what moves both is no shift.
    """
    requests = bad if total is None else total
    known = np.isfinite(requests) & np.isfinite(bad)
    if not known.any():
        return Shift(Shape.UNKNOWN, why="counts of requests: no reading in this window")
    if known.mean() < LEAST_KNOWN:
        return Shift(Shape.UNKNOWN, why=f"counts of requests: {1 - known.mean():.0%} of the minutes have no reading")
    if total is not None and total[known].sum() < LEAST_REQUESTS:
        return Shift(Shape.UNKNOWN, why=f"fewer than {LEAST_REQUESTS} requests in this window")
    found = Shift(Shape.NONE)
    for minutes in dict.fromkeys((len(bad), DAY_MIN, 120)):
        if minutes <= len(bad):
            found = _shift(bad, total, len(bad) - minutes, seed, rest)
            if found.shape is not Shape.NONE:
                break
    return found


def _shift(bad: Array, total: Array | None, first: int, seed: int, rest: tuple[Array, Array] | None) -> Shift:
    minutes = len(bad) - first
    width = 30 if minutes >= 3 * DAY_MIN else 10 if minutes >= 720 else 2 if minutes > SHORT_MIN else 1
    logit, at = _binned(bad[first:], None if total is None else total[first:], width)
    if rest is not None:
        others, seen_at = _binned(rest[0][first:], rest[1][first:], width)
        common, own_index, rest_index = np.intersect1d(at, seen_at, return_indices=True)
        logit, at = logit[own_index] - others[rest_index], common
    if len(logit) < FEWEST_BINS:
        return Shift(Shape.UNKNOWN, why="counts of requests: too few minutes with requests")
    season_known = minutes >= 3 * DAY_MIN
    if season_known:
        logit = logit - _season(logit, at, width)
    random = np.random.default_rng(seed)
    block = 8 if width >= 10 else 10 if width == 2 else max(3, len(logit) // 20)
    designs, starts = _designs(len(logit))
    fits = designs @ logit
    steps = len(starts)
    best = int(np.argmax(fits[:steps]))
    ramp = steps + int(np.argmax(fits[steps:]))
    if fits[ramp] > RAMP_BETTER * max(fits[best], 0):
        best = ramp
    fitted = fits[best] * designs[best]
    ratio = float(np.exp(fitted[-1] - fitted[0]))
    left = logit - logit.mean() - fitted
    is_long = width >= 10 and rest is None
    least = float(np.log(LEAST_RATIO)) if is_long else max(float(np.log(LEAST_RATIO_SHORT)), WANDERS * _spread(left))
    p = 1.0
    if float(np.log(max(ratio, 1e-9))) >= least:
        shuffled = _blocks(logit, block, PERMUTATIONS, random, replace=False)
        p = (1 + int(((shuffled @ designs.T).max(axis=1) >= fits[best]).sum())) / (1 + PERMUTATIONS)
    if p > MOST_P:
        return Shift(Shape.NONE, first=first, width_min=width, p=p, season_known=season_known)
    is_step = best < steps
    own = designs[:steps] if is_step else designs[steps:]
    again = fitted + _blocks(left, block, RESAMPLES, random, replace=True)
    drawn = starts[(again @ own.T).argmax(axis=1)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    times = np.append(at, at[-1] + width)
    begin = int(starts[best % steps])
    shape = Shape.STEP if is_step else Shape.RISING
    around = (first + float(times[int(low)]) - width, first + float(times[int(np.ceil(high))]) + width)
    return Shift(shape, first + float(times[begin]), *around, first, width, ratio, p, season_known)


def _binned(bad: Array, total: Array | None, width: int) -> tuple[Array, Array]:
    """Log odds of a bad request by bin (or the log of the median value), and the first minute of each bin; empty bins are left out."""
    cut = len(bad) % width  # the oldest minutes, so that the last bin is a whole one
    times = cut + width * np.arange(len(bad) // width, dtype=float)
    failed = bad[cut:].reshape(-1, width)
    if total is None:
        full = np.isfinite(failed).any(axis=1)
        return np.log(np.maximum(np.nanmedian(failed[full], axis=1), 1e-3)), times[full]
    requests = total[cut:].reshape(-1, width)
    known = np.isfinite(failed) & np.isfinite(requests)
    sums = [np.where(known, one, 0).sum(axis=1) for one in (failed, requests)]
    full = sums[1] > 0
    return np.log((sums[0] + 0.5) / (np.maximum(sums[1] - sums[0], 0) + 0.5))[full], times[full]


def _season(logit: Array, at: Array, width: int) -> Array:
    slot = (at % DAY_MIN // width).astype(int)
    medians = np.zeros(slot.max() + 1)
    for one in np.unique(slot):
        medians[one] = np.median(logit[slot == one])
    return np.asarray((medians - np.median(logit))[slot])


def _spread(left: Array) -> float:
    """Deviation of the means of ten bins; three degrees of freedom went into the fit."""
    means = left[len(left) % 10 :].reshape(-1, 10).mean(axis=1)
    return float(np.sqrt((means**2).sum() / max(1, len(means) - 3)))


@lru_cache(maxsize=8)
def _designs(bins: int) -> tuple[Array, Array]:
    """Unit vectors with mean 0: a step at each start, then a ramp from each start; and the starts."""
    margin = max(3, bins // 25)
    starts = np.arange(margin, bins - margin + 1)
    since = np.arange(bins)[None, :] - starts[:, None] + 1.0
    rows = np.concatenate([(since > 0).astype(float), np.maximum(since, 0)])
    rows -= rows.mean(axis=1, keepdims=True)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), starts.astype(float)


def _blocks(values: Array, block: int, draws: int, random: np.random.Generator, *, replace: bool) -> Array:
    """The values in blocks, shuffled or drawn with replacement; one row for each draw."""
    count = -(-len(values) // block)
    index = np.arange(count * block).reshape(count, block)
    order = (
        random.integers(0, count, (draws, count))
        if replace
        else random.permuted(np.tile(np.arange(count), (draws, 1)), axis=1)
    )
    rows = index[order].reshape(draws, -1)
    if replace:
        return np.asarray(values[rows[:, : len(values)] % len(values)])
    return np.asarray(values[rows[rows < len(values)].reshape(draws, -1)])
