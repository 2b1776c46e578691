"""Whether "the q-quantile of the latency is within the objective" is proven, refuted or open.

The test counts requests over the objective, `x` of `n`, and asks whether their share is below p0 = 1 - q. It may be looked
at after every request: the chance that it is ever wrong stays at 1 - confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from validators.core.beta import incomplete, log_beta, log_incomplete
from validators.core.verdict import Verdict

#: The mixture's first parameter, and its second one times p0 for either side. At p0 = .01 these are Beta(.5, 60) and Beta(.5, 10).
#: Source: chosen for power at p0 = .01 by simulation (tests/core/test_slo.py repeats it), kept in shape for other p0.
_A, _PASS_B, _FAIL_B = 0.5, 0.6, 0.1
_BISECTIONS = 30
#: A dispersion estimated from the run itself is multiplied by this. Source: measured false alarms fall below nominal at 1.5.
DISPERSION_SAFETY = 1.5


@dataclass(frozen=True)
class SloJudgement:
    """The evidence on both sides. `phi` is the dispersion by which the counts were divided before they were weighed."""

    verdict: Verdict
    over: int
    n: int
    allowed_share: float
    confidence: float
    phi: float
    log_e_pass: float
    log_e_fail: float


def judge_slo(
    over: int, n: int, *, quantile: float, confidence: float, phi: float = 1.0, tests: int = 1
) -> SloJudgement:
    """`over` of `n` requests were slower than the objective (or failed). Passed, failed, or undecided.

    Args:
        quantile: in (0, 1), such as .99: at most 1 % may be over.
        confidence: in (0, 1); a side is taken when its evidence reaches 1 / (1 - confidence).
        phi: at least 1; clustered requests weigh less by this factor.
        tests: at least 1; of so many, each needs that much more evidence to fail (Bonferroni).
    """
    share = 1 - quantile
    x, size = over / phi, n / phi
    on_pass = log_evidence(x, size, share, passing=True)
    on_fail = log_evidence(x, size, share, passing=False)
    bar = -math.log1p(-confidence)
    fail_bar = bar + math.log(tests)
    verdict = Verdict.PASSED if on_pass >= bar else Verdict.FAILED if on_fail >= fail_bar else Verdict.UNDECIDED
    return SloJudgement(verdict, over, n, share, confidence, phi, on_pass, on_fail)


def most_over(over: int, n: int, *, confidence: float, phi: float = 1.0) -> float:
    """The largest share that may be over, for all that this run tells, however it was stopped; 1 where it tells nothing.

    Source: the smallest share whose own test passes (`log_evidence`, inverted by bisection).
    """
    bar = -math.log1p(-confidence)
    if over >= n:
        return 1.0
    low, high = over / n, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if log_evidence(over / phi, n / phi, middle, passing=True) >= bar:
            high = middle
        else:
            low = middle
    return high


def log_evidence(x: float, n: float, share: float, *, passing: bool) -> float:
    """log E against "p >= share" (passing) or "p <= share" (its fail twin), after `x` of `n` over; 0 at n = 0.

    E = [B(a+x, b+n-x) I(a+x, b+n-x)] / [B(a, b) I(a, b)] / (share^x (1-share)^(n-x)), I the tail on the alternative's side.
    Source: Bayes factor of a truncated beta mixture against the boundary; Ville's inequality makes it valid at every look.
    """
    a, b = _A, (_PASS_B if passing else _FAIL_B) / share

    def tail(first: float, second: float) -> float:
        return log_incomplete(share, first, second) if passing else log_incomplete(1 - share, second, first)

    seen = log_beta(a + x, b + n - x) + tail(a + x, b + n - x)
    before = log_beta(a, b) + tail(a, b)
    return seen - before - x * math.log(share) - (n - x) * math.log1p(-share)


def dispersion(counts: Sequence[int]) -> float:
    """phi >= 1 from counts per window: the safety factor times max(1, variance / mean); the factor alone where nothing was counted.

    Source: Fano factor; slow requests come in clusters, and counting them as independent passes and fails far too easily.
    """
    if len(counts) < 2 or sum(counts) == 0:
        return DISPERSION_SAFETY
    mean = sum(counts) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts) / (len(counts) - 1)
    return DISPERSION_SAFETY * max(1.0, variance / mean)


def quantile_bound(
    values: Sequence[float] | npt.NDArray[np.float64], share: float, *, independent: float, confidence: float
) -> float | None:
    """A lower confidence bound of a distribution's quantile, from a sample of which so many values count as independent.

    None if the sample is too small for any bound. Source: order statistics, Hahn and Meeker, Statistical Intervals, section 5.2:
    the k-th of n lies below the quantile with the probability that a Binomial(n, share) variable is at least k.
    """
    low, high = 0, int(independent)
    while low < high:  # the largest rank with P(Binomial(n, share) < rank) <= 1 - confidence
        rank = (low + high + 1) // 2
        if incomplete(1 - share, independent - rank + 1, rank) <= 1 - confidence:
            low = rank
        else:
            high = rank - 1
    if low < 1:
        return None
    return float(np.quantile(np.asarray(values, float), max(0.0, (low - 1) / independent), method="lower"))


def least_requests(*, quantile: float, confidence: float, phi: float = 1.0) -> int:
    """The least number of requests, none of them over, that can pass: named where a run was too short."""
    low, high = 1, 64
    while judge_slo(0, high, quantile=quantile, confidence=confidence, phi=phi).verdict is not Verdict.PASSED:
        low, high = high, high * 2
        if high > 2**40:
            raise ValueError(f"No run is long enough for quantile {quantile} at confidence {confidence}.")
    while low < high:
        middle = (low + high) // 2
        if judge_slo(0, middle, quantile=quantile, confidence=confidence, phi=phi).verdict is Verdict.PASSED:
            high = middle
        else:
            low = middle + 1
    return low


def proven_at_once(over: float, n: float, *, quantile: float, chance: float, phi: float = 1.0) -> bool:
    """Whether `over` of `n` requests prove that fewer than 1 - `quantile` are over, in a run whose length was settled before it.

    A single look asks for less than `judge_slo`, which may be looked at always. `chance`: of being wrong, in (0, 1).
    Source: the lower tail of the binomial distribution, of counts divided by their dispersion `phi`.
    """
    x, size = over / phi, n / phi
    return size > x and incomplete(quantile, size - x, x + 1) <= chance
