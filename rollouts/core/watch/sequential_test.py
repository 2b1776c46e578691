"""Whether a share is over an objective now: a sequential test that may be looked at after every bin of time.

For each alternative q above the null hypothesis p0, a bin with x bad of n attempts has the likelihood ratio
e = (q/p0)^x · ((1−q)/(1−p0))^(n−x), whose mean is at most 1 for every share p ≤ p0 of independent requests. The sum over all
beginnings is M ← (1 + M) · min(e, cap), and the alarm comes when the mean of M over the alternatives reaches the number of bins
between two false alarms. A capped e-value is one too, so a clump of failures in few bins raises no alarm.

Source: Shiryaev–Roberts as an e-detector (Shin, Ramdas & Rinaldo, arXiv 2203.03532). The numbers are measured by
`python -m benchmarks.calibration.watch`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: The alternatives, as multiples of the null hypothesis.
TIMES: tuple[float, ...] = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 80.0)
#: The mean time between two false alarms of one objective, in days.
FALSE_ALARM_DAYS = 1000
#: An alarm closes when the evidence for "within the objective" reaches this, and not in fewer bins than these.
CLOSES_AT, BINS_TO_CLOSE = 20.0, 30
_DAY_S = 86_400.0

Sums = tuple[float, ...]
NONE: Sums = (0.0,) * len(TIMES)
#: The closing test at its beginning.
EVEN: Sums = (1.0,) * len(TIMES)


@dataclass(frozen=True)
class Tier:
    """How urgent an alarm is.

    Attributes:
        name: `page` wakes somebody, `ticket` waits for working hours.
        bin_s: length of a bin in seconds.
        over: the null hypothesis: the share is at most `over` times the objective.
        bins_to_open: no alarm comes from fewer bins than about these.
    """

    name: str
    bin_s: float
    over: float
    bins_to_open: int

    @property
    def bar(self) -> float:
        """Bins between two false alarms."""
        return FALSE_ALARM_DAYS * _DAY_S / self.bin_s

    @property
    def log_cap(self) -> float:
        """The most evidence of one bin, as a logarithm: one alternative alone must reach the bar times their number."""
        return math.log(len(TIMES) * self.bar) / self.bins_to_open

    def null(self, max_frac: float) -> float:
        """p0 of an objective: `over` times it, and no more than half way to 1."""
        return min(self.over * max_frac, (1 + max_frac) / 2)

    def after(self, sums: Sequence[float], bad: int, attempts: int, max_frac: float) -> Sums:
        """M of each alternative after one more bin."""
        p0 = self.null(max_frac)
        logs = (_log_ratio(bad, attempts, min(times * p0, (1 + p0) / 2), p0) for times in TIMES)
        most = len(TIMES) * self.bar  # one alternative alone is over the bar then, and no sum grows for ever
        return tuple(min(most, (1 + m) * math.exp(min(self.log_cap, log))) for m, log in zip(sums, logs, strict=True))

    def is_over(self, sums: Sequence[float]) -> bool:
        return sum(sums) / len(sums) >= self.bar

    def expected_delay_s(self, share: float, rate_per_s: float, max_frac: float) -> float | None:
        """Seconds until an alarm if `share` of `rate_per_s` attempts are bad from now on; None if it would never come.

        From the mean evidence of a bin: that of the best alternative, its bins until the bar, and half a bin of waiting.
        """
        n, p0 = rate_per_s * self.bin_s, self.null(max_frac)
        alternatives = [min(times * p0, (1 + p0) / 2) for times in TIMES]
        most = max(_log_ratio(share * n, n, q, p0) for q in alternatives)
        if most <= 0:
            return None
        bins = math.log(len(TIMES) * self.bar) / min(self.log_cap, most)
        return (bins + 0.5) * self.bin_s


#: Over 3, latency that wanders raised 5 false pages for 1,000 models and day; over 4, five times the objective is found an hour later.
PAGE = Tier("page", bin_s=10.0, over=3.5, bins_to_open=12)
TICKET = Tier("ticket", bin_s=60.0, over=1.0, bins_to_open=60)
TIERS: tuple[Tier, ...] = (PAGE, TICKET)


def closing(sums: Sequence[float], bad: int, attempts: int, max_frac: float) -> Sums:
    """The evidence against "the share is over the objective" after one more bin, for each alternative.

    It begins anew whenever it falls below 1, so that a fault of hours is over as soon as one of minutes.
    """
    cap = math.log(CLOSES_AT) / BINS_TO_CLOSE
    logs = (_log_ratio(bad, attempts, max_frac / times, max_frac) for times in TIMES)
    most = CLOSES_AT * len(TIMES)
    return tuple(min(most, max(1.0, one * math.exp(min(cap, log)))) for one, log in zip(sums, logs, strict=True))


def is_closed(sums: Sequence[float]) -> bool:
    return sum(sums) / len(sums) >= CLOSES_AT * (1 - 1e-9)  # rounding


def _log_ratio(bad: float, attempts: float, q: float, p0: float) -> float:
    return bad * math.log(q / p0) + (attempts - bad) * math.log((1 - q) / (1 - p0))
