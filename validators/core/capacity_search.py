"""The greatest rate at which a server holds its objective: where to measure next, and what the measurements prove.

Rates are doubled until one is missed, then measured around the limit, as a curve through all measurements places it. Then a rate well
below the limit is confirmed, and after it a rate nearer to it with all the time that is left. What is claimed was measured in a run
of its own: at that rate, its length settled beforehand, its arrivals fresh, and nothing else enters its verdict.

Confirmations climb, so that too much is claimed only where the first of them that lies above the limit is proven: climbing needs no
correction for how often is looked. Source: tests in an order settled before (Maurer, Hothorn and Lehmacher, 1995). Only a confirmation
that proves nothing, after which a lower rate is tried, costs one of the `tries`.

What a claim rests on: arrivals in the shape and the mix that were sent, slow requests that come together for no longer
than a fortieth of the run or as clearly as its own counts show, and a server and a machine that stay as they were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from validators.core.overload_curve import Seen, curve_through
from validators.core.slo import judge_slo, proven_at_once
from validators.core.verdict import Verdict

#: A run's windows of a second are added up to so many chunks, whose counts tell how slow requests clump.
_CHUNKS = 40
#: Requests that come together are never taken for fewer: a run that saw hardly any slow one cannot tell.
_LEAST_DISPERSION = 3.0
_GROWTH, _MOST_HALVINGS = 2.0, 6
#: Shares over the objective, in parts of what is allowed. More than the first is a miss, of which no doubt is left while rates
#: are doubled; beyond the second a server is so far over its limit that it tells nothing of where that is.
_MISSED_SHARE, _TELLING_SHARE = 3.0, 15.0
#: For which shares rates near the limit are measured, in turn. Source, also of the three below and the parts of the budget: together
#: the greatest median claims in 600 s without claiming too much, on seeds below 1000 of `benchmarks.capacity`.
_NEAR_SHARES = (3.0, 1.0, 0.4)
#: What is confirmed: first a rate that is hardly ever too high, then one that two in three prove; then one between
#: what was proven and what was not, or, where nothing was, one below.
_SAFE_SHARE, _NEARER_SHARE, _BETWEEN_SHARE, _LOWER_SHARE = 0.18, 0.45, 0.3, 0.09
#: From one confirmation to the next the rate changes by this at least.
_STEP_UP, _STEP_DOWN = 1.02, 0.97
#: Neighbouring rates of which one is met by all requests and the other by none are never closer.
_SHARP = 1.05
#: A confirmation with so large a share over is given up, after so many seconds or later.
_HOPELESS_SHARE, HOPELESS_AFTER_S = 0.8, 60
#: Of the budget; what is left for a confirmation has to be as much, or it would hardly prove anything.
_LEAST_CONFIRM = 0.1


class Purpose(StrEnum):
    PROBE = "probe"  # far from the limit, or nobody knows how far
    NEAR = "near"  # around it
    CONFIRM = "confirm"


@dataclass(frozen=True)
class SearchPlan:
    """What is asked and how long it may take. Rates are requests per second; `budget_s` is of all runs together."""

    quantile: float
    confidence: float
    first_per_s: float
    most_per_s: float
    budget_s: float = 600.0
    tries: int = 2

    @property
    def allowed(self) -> float:
        """The share of requests that may be over."""
        return 1 - self.quantile

    @property
    def chance(self) -> float:
        """Of one confirmation to be wrong: all tries share it (Bonferroni)."""
        return (1 - self.confidence) / self.tries

    @property
    def probe_s(self) -> float:
        return max(3.0, round(self.budget_s / 120))

    @property
    def near_s(self) -> float:
        return round(self.budget_s * 0.058)

    @property
    def first_confirm_s(self) -> float:
        """Of the first confirmation; a later one takes what is left of the budget."""
        return round(self.budget_s * 0.23)


@dataclass(frozen=True)
class Step:
    """What to measure next."""

    rate_per_s: float
    seconds: float
    purpose: Purpose


@dataclass(frozen=True)
class Run:
    """What was measured: requests by windows of a second, and of them those over the objective or failed."""

    step: Step
    over_per_window: tuple[int, ...]
    sent_per_window: tuple[int, ...]

    @property
    def over(self) -> int:
        return sum(self.over_per_window)

    @property
    def requests(self) -> int:
        return sum(self.sent_per_window)

    @property
    def over_frac(self) -> float:
        return self.over / max(1, self.requests)

    @property
    def seen(self) -> Seen:
        return Seen(self.step.rate_per_s, self.over / self.dispersion, self.requests / self.dispersion)

    @property
    def is_whole(self) -> bool:
        return len(self.over_per_window) >= self.step.seconds

    @property
    def dispersion(self) -> float:
        """How many slow requests come together: variance over mean of the counts of chunks, and no less than three."""
        size = max(1, len(self.over_per_window) // _CHUNKS)
        chunks = [sum(self.over_per_window[at : at + size]) for at in range(0, len(self.over_per_window), size)]
        mean = sum(chunks) / max(1, len(chunks))
        if len(chunks) < 2 or mean == 0:
            return _LEAST_DISPERSION
        variance = sum((one - mean) ** 2 for one in chunks) / (len(chunks) - 1)
        return max(_LEAST_DISPERSION, variance / mean)


@dataclass(frozen=True)
class Ended:
    """The run that proves the claimed rate; none, and `why`, where nothing was proven."""

    claim: Run | None
    why: str = ""


def next_step(runs: Sequence[Run], plan: SearchPlan) -> Step | Ended:
    """What to measure after these runs, or what they came to. The same for the same runs."""
    confirmed = _Confirmed.by(runs, plan)
    missed = [one.step.rate_per_s for one in runs if one.over_frac > _MISSED_SHARE * plan.allowed]
    held = [one.step.rate_per_s for one in runs if one.over_frac <= _MISSED_SHARE * plan.allowed]
    if not missed and plan.most_per_s in held:
        return confirmed.then(plan.most_per_s)
    if not missed:
        grown = _GROWTH * max(held) if held else plan.first_per_s
        return Step(min(plan.most_per_s, grown), plan.probe_s, Purpose.PROBE)
    if not held and min(missed) > plan.first_per_s / _GROWTH**_MOST_HALVINGS:
        return Step(min(missed) / _GROWTH, plan.probe_s, Purpose.PROBE)
    if not held:
        return Ended(None, f"it misses its objective even at {min(missed):.3g}/s")
    telling = [one for one in runs if one.over_frac <= _TELLING_SHARE * plan.allowed]
    if not any(one.over for one in telling):
        return _between(max(held), min(missed), confirmed)
    curve = curve_through([one.seen for one in telling])
    near = sum(one.step.purpose is Purpose.NEAR for one in runs)
    if near < len(_NEAR_SHARES) and confirmed.is_first:
        rate = curve.rate_at(min(0.5, _NEAR_SHARES[near] * plan.allowed))
        return Step(min(rate, _GROWTH * max(held), plan.most_per_s), plan.near_s, Purpose.NEAR)
    return confirmed.then(curve.rate_at(confirmed.share * plan.allowed), climbs=True)


def _between(held: float, missed: float, confirmed: _Confirmed) -> Step | Ended:
    """Nothing is over at one rate and everything at another: a limit without a slope, which halving finds."""
    plan = confirmed.plan
    if not confirmed.is_first or confirmed.left_s <= 2 * plan.first_confirm_s or missed / held < _SHARP:
        return confirmed.then(held)
    return Step(math.sqrt(held * missed), plan.probe_s, Purpose.PROBE)


@dataclass(frozen=True)
class _Confirmed:
    """The confirmations so far, as rates per second that rise and that fall, and the seconds that are left."""

    plan: SearchPlan
    best: Run | None  # of those that proved their rate
    open_rates: tuple[float, ...]  # of those that did not, as they came
    left_s: float

    @classmethod
    def by(cls, runs: Sequence[Run], plan: SearchPlan) -> _Confirmed:
        confirms = [one for one in runs if one.step.purpose is Purpose.CONFIRM]
        best = next((one for one in reversed(confirms) if proves(one, plan)), None)
        open_rates = tuple(one.step.rate_per_s for one in confirms if not proves(one, plan))
        return cls(plan, best, open_rates, plan.budget_s - sum(len(one.over_per_window) for one in runs))

    @property
    def is_first(self) -> bool:
        return self.best is None and not self.open_rates

    @property
    def share(self) -> float:
        """For which share over, in parts of what is allowed, the next rate is to be confirmed."""
        if self.is_first:
            return _SAFE_SHARE
        if not self.open_rates:
            return _NEARER_SHARE
        return _BETWEEN_SHARE if self.best else _LOWER_SHARE

    def then(self, rate_per_s: float, *, climbs: bool = False) -> Step | Ended:
        """The next confirmation, at this rate or less, or a little above what is proven where it `climbs`; or the end."""
        rate = min([rate_per_s, self.plan.most_per_s, *(_STEP_DOWN * one for one in self.open_rates)])
        proven = self.best.step.rate_per_s if self.best else 0.0
        if climbs and not self.open_rates:
            rate = min(max(rate, _STEP_UP * proven), self.plan.most_per_s)
        seconds = min(self.plan.first_confirm_s, self.left_s) if self.is_first else self.left_s
        is_spent = len(self.open_rates) >= self.plan.tries or seconds < _LEAST_CONFIRM * self.plan.budget_s
        if is_spent or rate < _STEP_UP * proven:
            return Ended(self.best, "" if self.best else self._why())
        return Step(rate, float(int(seconds)), Purpose.CONFIRM)

    def _why(self) -> str:
        rates = " and ".join(f"{one:.3g}/s" for one in self.open_rates) or "any rate"
        return f"{self.plan.budget_s:g} s were not enough to prove {rates}"


def proves(run: Run, plan: SearchPlan) -> bool:
    """Whether this run alone, looked at once at the end that was settled, proves the objective at its rate."""
    return run.is_whole and proven_at_once(
        run.over, run.requests, quantile=plan.quantile, chance=plan.chance, phi=run.dispersion
    )


def refutes(run: Run, plan: SearchPlan) -> bool:
    """Whether this run alone proves that the objective does not hold at its rate; it may have been stopped at any time."""
    judged = judge_slo(run.over, run.requests, quantile=plan.quantile, confidence=plan.confidence, phi=run.dispersion)
    return judged.verdict is Verdict.FAILED


def is_hopeless(run: Run, plan: SearchPlan) -> bool:
    """Whether a confirmation, after its windows so far, may be given up; that can lose a claim, and never makes one."""
    is_young = len(run.over_per_window) < HOPELESS_AFTER_S
    return run.step.purpose is Purpose.CONFIRM and not is_young and run.over_frac > _HOPELESS_SHARE * plan.allowed
