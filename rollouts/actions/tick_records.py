"""Rows of a tick: its rollout, blocks of observations, and new decisions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

from django.db import connection, transaction
from django.db.models import Count

from accounts.core.access import Actor
from ledger.actions.transitions import reread
from ledger.core.errors import Stale, StateChanged
from rollouts.core.decision import Code, evidence_of
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import FULL_BP
from rollouts.core.tick import Outcome, Tick
from rollouts.core.tick_history import MOST_BLOCKS, Segment, joined, to_join
from rollouts.models import DecisionRecord, Observation, Rollout
from rollouts.queries.replay import block_of

ENGINE = Actor.system("engine")
#: States whose rows keep the reason that they have: what a person or the rollback wrote there.
_KEEP_REASON = frozenset({RolloutState.ROLLING_BACK, RolloutState.STUCK, RolloutState.AWAITING_APPROVAL})


def write(rollout: Rollout, tick: Tick, outcome: Outcome, *, fence: int) -> None:
    """The compare-and-set of the tick, with its observation. Must run in a transaction.

    `fence` is the leader's token; an older one cannot write. Raises StateChanged when a person moved the rollout meanwhile,
    or a newer engine writes it.
    """
    observation = _observation(rollout, tick, outcome)
    fresh = Rollout.objects.filter(
        pk=rollout.pk, state=rollout.state, version=rollout.version, tick=rollout.tick, fence__lte=fence
    ).update(tick=tick.number, fence=fence, engine_state=_state(outcome), **_columns(tick))
    if not fresh:
        raise StateChanged(
            "state_changed", f"Rollout {rollout.pk} moved while this tick looked at it; the next tick reads it again."
        )
    reread(rollout)
    if observation is not None:
        observation.save(force_insert=True)


# One statement for many rollouts: each is compared as `write` compares it, and one that somebody else holds locked is left
# out instead of waited for. It is unchanged, and its next tick reads it again.
_WRITE_HOLDS = """
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(%s::jsonb) AS given(
        id bigint, state text, version int, tick bigint, number bigint, engine_state jsonb,
        observed_bp int, reason text, step_started_at timestamptz, due_at timestamptz)
), free AS MATERIALIZED (
    SELECT rollout.id FROM rollouts_rollout rollout JOIN given USING (id)
    WHERE rollout.state = given.state AND rollout.version = given.version AND rollout.tick = given.tick
      AND rollout.fence <= %s
    FOR NO KEY UPDATE OF rollout SKIP LOCKED
)
UPDATE rollouts_rollout rollout
SET tick = given.number, fence = %s, engine_state = given.engine_state,
    observed_bp = coalesce(given.observed_bp, rollout.observed_bp), reason = coalesce(given.reason, rollout.reason),
    step_started_at = coalesce(given.step_started_at, rollout.step_started_at),
    due_at = coalesce(given.due_at, rollout.due_at)
FROM given JOIN free USING (id)
WHERE rollout.id = given.id
RETURNING rollout.id
"""


@transaction.atomic
def commit_holds(holds: Sequence[tuple[Rollout, Tick, Outcome]], *, fence: int) -> set[int]:
    """Writes ticks without an effect or a warning, all in one transaction; returns the rollouts whose tick was written.

    A tick that is missing in the answer is undone: its rollout moved, or somebody holds it. Sets the written columns on
    the rollouts too.
    """
    columns = {rollout.pk: _columns(tick) for rollout, tick, _ in holds}
    rows = [
        {
            "id": rollout.pk, "state": rollout.state, "version": rollout.version, "tick": rollout.tick, "number": tick.number,
            "engine_state": _state(outcome), **columns[rollout.pk],
        }
        for rollout, tick, outcome in holds
    ]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_WRITE_HOLDS, [json.dumps(rows, default=datetime.isoformat), fence, fence])
        written: set[int] = {row[0] for row in cursor.fetchall()}
    kept = [hold for hold in holds if hold[0].pk in written]
    observations = [_observation(*hold) for hold in kept]
    Observation.objects.bulk_create([one for one in observations if one is not None])
    DecisionRecord.objects.bulk_create(
        [decision_of(rollout, tick) for rollout, tick, outcome in kept if outcome.is_recorded]
    )
    for rollout, tick, _ in kept:
        for name, value in columns[rollout.pk].items():
            setattr(rollout, name, value)
        rollout.tick, rollout.fence = tick.number, fence
    return written


def _state(outcome: Outcome) -> dict[str, Any]:
    return {**outcome.engine_state.to_json(), "history": outcome.history.to_json()}


def _columns(tick: Tick) -> dict[str, Any]:
    """What changes in the rollout's row besides the engine's state."""
    s = tick.snapshot
    changes: dict[str, Any] = {}
    if s.observed_frac is not None:
        changes["observed_bp"] = round(s.observed_frac * FULL_BP)
    if tick.acked_at is not None:
        changes |= {"step_started_at": tick.acked_at, "due_at": tick.acked_at + timedelta(seconds=s.stage.deadline_s)}
    is_quiet = tick.decision.code is Code.PAUSED or s.desired.state in _KEEP_REASON
    if not tick.is_effect and not is_quiet:
        changes["reason"] = tick.decision.reason
    return changes


def decision_of(rollout: Rollout, tick: Tick) -> DecisionRecord:
    """The tick's decision as a row, not saved yet."""
    decision = tick.decision
    return DecisionRecord(
        rollout=rollout, at=tick.at, tick=tick.number, action=decision.action.value, reason=decision.reason,
        code=decision.code.value, actor=ENGINE.name, facts=decision.facts,
    )  # fmt: skip


# --- observations -----------------------------------------------------------------------------------------------------


def _observation(rollout: Rollout, tick: Tick, outcome: Outcome) -> Observation | None:
    if outcome.block is None:
        return None
    s = tick.snapshot
    evidence = {judged.guard.name: evidence_of(judged) for judged in s.evidence.judged}
    return _row_of(outcome.block, rollout, str(s.desired.state), s.desired.weight_bp, evidence, outcome.problem)


def _row_of(
    block: Segment, rollout: Rollout, state: str, weight_bp: int, evidence: dict[str, Any], problem: str
) -> Observation:
    return Observation(
        rollout=rollout,
        first_tick=block.first_tick,
        tick=block.tick,
        from_at=datetime.fromtimestamp(block.from_at, UTC),
        at=datetime.fromtimestamp(block.at, UTC),
        state=state,
        weight_bp=weight_bp,
        ticks=list(block.ticks),
        candidate=block.arms.candidate.to_json(),
        stable=block.arms.stable.to_json(),
        evidence=evidence,
        problem=problem,
    )


@transaction.atomic
def join_old_blocks(rollout: Rollout, *, fence: int, most: int = MOST_BLOCKS) -> int:
    """How many blocks the rollout is left with: not more than `most`, the old ones joined into coarser ones.

    Raises Stale when another engine leads.
    """
    if not Rollout.objects.select_for_update(no_key=True).filter(pk=rollout.pk, fence__lte=fence).exists():
        raise Stale("fence_outdated", f"Another engine writes rollout {rollout.pk}.", fence=fence)
    spans = list(rollout.observations.order_by("first_tick", "tick").values_list("pk", "first_tick", "tick"))
    runs = to_join([(first, last) for _, first, last in spans], most)
    for start, stop in runs:
        _join(rollout, [pk for pk, _, _ in spans[start : stop + 1]])
    return len(spans) - sum(stop - start for start, stop in runs)


def _join(rollout: Rollout, pks: Collection[int]) -> None:
    rows = list(Observation.objects.filter(pk__in=pks).order_by("first_tick", "tick"))
    newest = rows[-1]
    problem = next((row.problem for row in reversed(rows) if row.problem), "")
    whole = reduce(joined, [block_of(row) for row in rows])
    _row_of(whole, rollout, newest.state, newest.weight_bp, newest.evidence, problem).save(force_insert=True)
    Observation.objects.filter(pk__in=pks).delete()  # a coarser block covers these


def count_blocks(rollout_ids: Iterable[int]) -> dict[int, int]:
    """How many blocks are stored of each rollout."""
    counted = (
        Observation.objects.filter(rollout_id__in=list(rollout_ids)).values_list("rollout_id").annotate(Count("pk"))
    )
    return dict(counted)
