"""Objectives of a model, as the watch judges them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollouts.core.counter_deltas import Counts
from rollouts.core.evidence import Tolerance
from rollouts.core.indicators import PROBE, Source
from rollouts.core.policy import Guard, Policy
from rollouts.core.watch.sequential_test import PAGE, Tier

#: An objective of no failure at all is judged as this share: no test can prove that a share is 0.
LEAST_FRAC, MOST_FRAC = 1e-5, 0.99


@dataclass(frozen=True)
class Objective:
    """At most `max_frac` of the attempts of the guard's indicator are bad. A share in (0, 1)."""

    guard: Guard

    @property
    def name(self) -> str:
        """`errors`, `slow_250ms`."""
        return self.guard.name

    @property
    def words(self) -> str:
        """`errors`, `slow requests (over 250 ms)`."""
        return self.guard.words

    @property
    def page(self) -> Tier:
        return replace(PAGE, bins_to_open=self.guard.kind.bins_to_page)

    @property
    def max_frac(self) -> float:
        return min(MOST_FRAC, max(LEAST_FRAC, self.guard.max_frac))

    def counted(self, counts: Counts) -> tuple[int, int]:
        """(bad attempts, attempts) of this objective among the counts of a release."""
        return counts.bad.get(self.name, 0), self.guard.kind.attempts(counts, self.name)


def probed(objectives: Mapping[str, Any]) -> Objective:
    """The objective on golden probes of a model with these objectives."""
    share = PROBE.objective(objectives, PROBE.name).get("max_frac")
    over = Tolerance(PROBE.ratio, PROBE.plus_frac)
    return Objective(Guard(PROBE.name, PROBE.max_frac if share is None else float(share), over, over))


def objectives_of(policy: Policy) -> tuple[Objective, ...]:
    """The objectives that gateways count and that a release can break: not what callers cause, and not dry runs."""
    return tuple(
        Objective(guard)
        for guard in policy.guards
        if guard.source is Source.GATEWAY and not guard.kind.is_callers and not guard.is_dry_run and guard.max_frac < 1
    )
