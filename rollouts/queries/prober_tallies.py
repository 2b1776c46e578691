"""What the prober has counted, as the engine reads counters."""

from __future__ import annotations

from collections.abc import Iterable

from rollouts.core.counter_deltas import Counts, Reading
from rollouts.models import ProbeTally

#: The one guard that the prober counts; see `rollouts.core.policy.Guard.name`.
WRONG = "wrong"
#: A tally is written every second; one that is older than this has no prober behind it.
STALE_S = 5.0


def wrong_readings(rollout_ids: Iterable[int]) -> dict[int, Reading]:
    """The cumulative counts of the guard `wrong`, by rollout; those that were never probed are left out. One query.

    `at` is when the prober wrote last (Unix seconds); over `STALE_S` ago, nobody is probing.
    """
    tallies = ProbeTally.objects.filter(rollout_id__in=list(rollout_ids), guard=WRONG)
    return {
        one.rollout_id: Reading(
            epoch=one.epoch,
            at=one.at.timestamp(),
            candidate=Counts(one.candidate_attempts, bad={WRONG: one.candidate_bad}),
            stable=Counts(one.stable_attempts, bad={WRONG: one.stable_bad}),
        )
        for one in tallies
    }
