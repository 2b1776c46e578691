"""The prober's counts, in the form of the engine's counters."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from rollouts.core.counter_deltas import Arms, Counts, Reading
from rollouts.core.indicators import PROBE
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


#: Tallies of probes are written as they change, and every few seconds.
PROBES_STALE_S = 20.0


def probe_readings(now: datetime) -> dict[tuple[int, int, UUID], tuple[str, Arms]]:
    """(epoch, counts of the release before and of stable) of golden probes, by environment, model and stable release.

    Without models that are not probed now. One query.
    """
    rows = ProbeTally.objects.filter(guard=PROBE.name, at__gt=now - timedelta(seconds=PROBES_STALE_S))
    return {
        (one.rollout.environment_id, one.rollout.model_id, one.rollout.candidate_id): (
            one.epoch,
            Arms(
                Counts(one.stable_attempts, bad={PROBE.name: one.stable_bad}),
                Counts(one.candidate_attempts, bad={PROBE.name: one.candidate_bad}),
            ),
        )
        for one in rows.select_related("rollout").only(
            *(f"rollout__{name}" for name in ("environment", "model", "candidate")),
            *("epoch", "candidate_attempts", "candidate_bad", "stable_attempts", "stable_bad"),
        )
    }
