"""What a tick leaves in the database: the row of its rollout, blocks of observations, decisions that say something new."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

from django.db import connection, transaction

from accounts.core.access import Actor
from accounts.core.errors import Stale, StateChanged
from ledger.actions.transitions import reread
from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.decision import EXCUSES, Action, Code, evidence_of
from rollouts.core.decision import Decision as Decided
from rollouts.core.engine_state import EngineState
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.policy import FULL_BP, Policy
from rollouts.core.snapshot import Snapshot
from rollouts.core.tick_history import BLOCK_ROWS, MOST_BLOCKS, OpenSegment, Segment, TickRecord, joined, to_join
from rollouts.models import DecisionRecord, Observation, Rollout

S = RolloutState
ENGINE = Actor.system("engine")
#: States whose ticks are kept as observations.
OBSERVED = LIVE | {S.ROLLING_BACK, S.STUCK}
#: So many holds for changing reasons are all recorded; from then on each waits twice as long as the one before it.
FREELY_SAID, FIRST_WAIT_S, LONGEST_WAIT_S = 24, 60.0, 86_400.0
#: What people are told of by an event waits no longer than this.
WARNED_WITHIN_S = 300.0


@dataclass(frozen=True)
class Tick:
    """What one tick knows and found. `fence` is the leader's token; an older one cannot write.

    `number` is the tick's own; the row is at `rollout.tick`, which is the one before it or, where quiet ticks were kept in
    memory, some before.
    """

    rollout: Rollout
    policy: Policy
    carry: EngineState
    snapshot: Snapshot
    decision: Decided
    fence: int
    at: datetime
    number: int
    acked_at: datetime | None = None  # set on the tick that first sees the step's weight acknowledged
    history: OpenSegment = field(default_factory=OpenSegment)  # before this tick
    row: TickRecord | None = None  # this tick, for the history

    @property
    def is_effect(self) -> bool:
        return self.decision.action is not Action.HOLD

    @property
    def warning(self) -> str:
        """The event of something that people should hear of though nothing moves.

        Blindness, a deadline that passed, and evidence that would have taken the candidate back, were it not excused.
        """
        if self.is_effect or self.said == self.carry.said:
            return ""
        if self.decision.code is Code.BLIND:
            return "rollout.blind"
        is_overdue = self.decision.code is Code.OVERDUE or self.decision.facts.get("is_late")
        if is_overdue:
            return "rollout.overdue"
        return "rollout.held" if self.decision.code in EXCUSES and "guard" in self.decision.facts else ""

    @property
    def said(self) -> str:
        """What the decision comes down to, numbers aside."""
        return f"{self.decision.action}:{self.decision.code}{':late' if self.decision.facts.get('is_late') else ''}"


@dataclass(frozen=True)
class Outcome:
    """What is kept of a tick: for the next one, and as rows."""

    carry: EngineState
    history: OpenSegment
    block: Observation | None
    decision: DecisionRecord | None

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is lost but the resolution of counts should the tick be undone: gateways count on."""
        return self.block is None and self.decision is None


def outcome_of(tick: Tick) -> Outcome:
    """What the tick leaves, before anything is written."""
    is_new = tick.said != tick.carry.said
    is_recorded = tick.is_effect or (is_new and _may_say(tick))
    carry = tick.carry
    if is_recorded:
        carry = replace(carry, said=tick.said)
    if tick.decision.action is Action.PROMOTE and not carry.is_promoting:
        carry = replace(carry, is_promoting=True)
    history, block = tick.history, None
    if is_recorded:
        history = replace(history, spoken=(0 if tick.is_effect else history.spoken[0] + 1, tick.at.timestamp()))
    if tick.row is not None and tick.rollout.state in OBSERVED:
        history = history.after(tick.row)
        # at other ticks for each rollout, so that not all of them store in the same turn
        if is_recorded or (tick.row.tick + tick.rollout.pk) % BLOCK_ROWS == 0:
            block, history = _observation(tick, history), history.stored()
    return Outcome(carry, history, block, _decision(tick) if is_recorded else None)


def write(tick: Tick, outcome: Outcome) -> None:
    """The compare-and-set that everything else of the tick hangs on, and what it saw. Must run in a transaction.

    Raises StateChanged when a person moved the rollout meanwhile, or a newer engine writes it.
    """
    rollout = tick.rollout
    fresh = Rollout.objects.filter(
        pk=rollout.pk, state=rollout.state, version=rollout.version, tick=rollout.tick, fence__lte=tick.fence
    ).update(tick=tick.number, fence=tick.fence, engine_state=_state(outcome), **_columns(tick))
    if not fresh:
        raise StateChanged(
            "state_changed", f"Rollout {rollout.pk} moved while this tick looked at it; the next tick reads it again."
        )
    reread(rollout)
    if outcome.block is not None:
        outcome.block.save(force_insert=True)


# One statement for many rollouts: each is compared as `write` compares it, and one that somebody else holds locked is left
# out, so that nobody waits for it. What is left out is as it was, and its next tick reads it again.
_WRITE_HOLDS = """
WITH told AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(%s::jsonb) AS told(
        id bigint, state text, version int, tick bigint, number bigint, engine_state jsonb,
        observed_bp int, reason text, step_started_at timestamptz, due_at timestamptz)
), free AS MATERIALIZED (
    SELECT rollout.id FROM rollouts_rollout rollout JOIN told USING (id)
    WHERE rollout.state = told.state AND rollout.version = told.version AND rollout.tick = told.tick
      AND rollout.fence <= %s
    FOR NO KEY UPDATE OF rollout SKIP LOCKED
)
UPDATE rollouts_rollout rollout
SET tick = told.number, fence = %s, engine_state = told.engine_state,
    observed_bp = coalesce(told.observed_bp, rollout.observed_bp), reason = coalesce(told.reason, rollout.reason),
    step_started_at = coalesce(told.step_started_at, rollout.step_started_at),
    due_at = coalesce(told.due_at, rollout.due_at)
FROM told JOIN free USING (id)
WHERE rollout.id = told.id
RETURNING rollout.id
"""


@transaction.atomic
def commit_holds(holds: Sequence[tuple[Tick, Outcome]], *, fence: int) -> set[int]:
    """Writes ticks without an effect or a warning, all in one transaction; returns the rollouts whose tick was written.

    A tick that is missing in the answer is undone: its rollout moved, or somebody holds it. Sets the written columns on
    the rollouts too.
    """
    ticks = [tick for tick, _ in holds]
    outcomes = {tick.rollout.pk: outcome for tick, outcome in holds}
    columns = {tick.rollout.pk: _columns(tick) for tick in ticks}
    told = [
        {
            "id": pk, "state": tick.rollout.state, "version": tick.rollout.version, "tick": tick.rollout.tick, "number": tick.number,
            "engine_state": _state(outcomes[pk]), **columns[pk],
        }
        for tick in ticks
        for pk in (tick.rollout.pk,)
    ]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_WRITE_HOLDS, [json.dumps(told, default=datetime.isoformat), fence, fence])
        written: set[int] = {row[0] for row in cursor.fetchall()}
    kept = {pk: outcome for pk, outcome in outcomes.items() if pk in written}
    Observation.objects.bulk_create([one.block for one in kept.values() if one.block is not None])
    DecisionRecord.objects.bulk_create([one.decision for one in kept.values() if one.decision is not None])
    for tick in ticks:
        if tick.rollout.pk in kept:
            for name, value in columns[tick.rollout.pk].items():
                setattr(tick.rollout, name, value)
            tick.rollout.tick, tick.rollout.fence = tick.number, fence
    return written


def _state(outcome: Outcome) -> dict[str, Any]:
    return {**outcome.carry.to_json(), "history": outcome.history.to_json()}


def _columns(tick: Tick) -> dict[str, Any]:
    """What changes in the rollout's row besides what the engine carries."""
    rollout, s = tick.rollout, tick.snapshot
    changes: dict[str, Any] = {}
    if s.observed_frac is not None:
        changes["observed_bp"] = round(s.observed_frac * FULL_BP)
    if tick.acked_at is not None:
        changes |= {"step_started_at": tick.acked_at, "due_at": tick.acked_at + timedelta(seconds=s.stage.deadline_s)}
    is_quiet = tick.decision.code is Code.PAUSED or rollout.state in {S.ROLLING_BACK, S.STUCK, S.AWAITING_APPROVAL}
    if not tick.is_effect and not is_quiet:
        changes["reason"] = tick.decision.reason
    return changes


def _may_say(tick: Tick) -> bool:
    """Whether a hold for a new reason is recorded. Reasons that take turns for days would else fill the log."""
    count, last = tick.history.spoken
    if count < FREELY_SAID:
        return True
    longest_s = WARNED_WITHIN_S if tick.warning else LONGEST_WAIT_S
    wait_s = min(longest_s, FIRST_WAIT_S * 2.0 ** min(30, count - FREELY_SAID))
    return tick.at.timestamp() - last >= wait_s


def _decision(tick: Tick) -> DecisionRecord:
    decision = tick.decision
    return DecisionRecord(
        rollout=tick.rollout, at=tick.at, tick=tick.number, action=decision.action.value, reason=decision.reason,
        code=decision.code.value, actor=ENGINE.name, facts=decision.facts,
    )  # fmt: skip


# --- observations -----------------------------------------------------------------------------------------------------


def _observation(tick: Tick, history: OpenSegment) -> Observation:
    evidence = {judged.guard.name: evidence_of(judged) for judged in tick.snapshot.judged}
    return _row_of(history.block(), tick.rollout, tick.rollout.state, tick.rollout.weight_bp, evidence, history.problem)


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


def block_of(row: Observation) -> Segment:
    """A stored block, as `rollouts.core` reads it."""
    arms = Arms(Counts.from_json(row.candidate), Counts.from_json(row.stable))
    return Segment(row.first_tick, row.tick, row.from_at.timestamp(), row.at.timestamp(), tuple(row.ticks), arms)


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
    Observation.objects.filter(pk__in=pks).delete()  # the database lets go of what a coarser block covers


def count_blocks(rollout_ids: Iterable[int]) -> dict[int, int]:
    """How many blocks are stored of each rollout."""
    from django.db.models import Count

    counted = (
        Observation.objects.filter(rollout_id__in=list(rollout_ids)).values_list("rollout_id").annotate(Count("pk"))
    )
    return dict(counted)
