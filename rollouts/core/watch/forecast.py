"""Expected delays of the watch at a rate of requests."""

from __future__ import annotations

from dataclasses import dataclass

from rollouts.core.evidence import Side, attempts_to_go, fixed_sums
from rollouts.core.policy import Policy
from rollouts.core.watch.objective import Objective, objectives_of
from rollouts.core.watch.sequential_test import PAGE, TICKET
from rollouts.core.watch.watched import MET_LOG_E

#: Share of the allowed bad requests that a healthy release has; a premise of `met_s`.
HEALTHY = 0.2


@dataclass(frozen=True)
class WatchForecast:
    """Seconds, rounded; None: never, or the rate is unknown.

    Attributes:
        page_all_s: until the page if every request fails.
        page_ten_s: until the page at ten times the objective.
        ticket_two_s: until the ticket at twice the objective.
        met_s: until the objective is proven to be met, if a fifth of the allowance is bad.
    """

    name: str
    words: str
    max_frac: float
    page_all_s: float | None
    page_ten_s: float | None
    ticket_two_s: float | None
    met_s: float | None


def watch_forecast(policy: Policy, rate_per_s: float | None) -> list[WatchForecast]:
    return [_of(objective, rate_per_s or 0.0) for objective in objectives_of(policy)]


def _of(objective: Objective, rate_per_s: float) -> WatchForecast:
    limit = objective.max_frac
    seconds: list[float | None] = [None] * 4
    if rate_per_s > 0:
        seconds = [
            PAGE.expected_delay_s(1.0, rate_per_s, limit),
            PAGE.expected_delay_s(min(1.0, 10 * limit), rate_per_s, limit),
            TICKET.expected_delay_s(min(1.0, 2 * limit), rate_per_s, limit),
            _attempts_to_prove(limit) / rate_per_s,
        ]
    rounded = [None if one is None else float(round(one)) for one in seconds]
    return WatchForecast(objective.name, objective.words, limit, *rounded)


def _attempts_to_prove(limit: float) -> float:
    """Attempts until the objective is proven to be met, at a fifth of the allowed share of bad attempts."""
    some = 1 / limit
    more = attempts_to_go(fixed_sums(HEALTHY, some, limit, Side.FINE), round(some), 1.0, MET_LOG_E)
    return some + (more or 0)
