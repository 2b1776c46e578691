"""A tick of a rollout: its observation, its decision, and the rows that remain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from rollouts.core.decision import EXCUSES, Action, Code, Decision
from rollouts.core.engine_state import EngineState
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.snapshot import Snapshot
from rollouts.core.tick_history import BLOCK_ROWS, OpenSegment, Segment, TickRecord

#: States whose ticks are kept as observations.
OBSERVED = LIVE | {RolloutState.ROLLING_BACK, RolloutState.STUCK}
#: So many holds for changing reasons are all recorded; from then on each waits twice as long as the one before it.
FREELY_RECORDED, FIRST_WAIT_S, LONGEST_WAIT_S = 24, 60.0, 86_400.0
#: What people are warned of by an event waits no longer than this.
WARNED_WITHIN_S = 300.0


@dataclass(frozen=True)
class Tick:
    """What one tick saw and decided; nothing of it is written yet."""

    number: int  # the row is at the tick before it or, where quiet ones were kept in memory, some before
    snapshot: Snapshot
    decision: Decision
    engine_state: EngineState  # with this tick's readings in it
    history: OpenSegment  # before this tick
    record: TickRecord  # this tick, for the history

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.snapshot.observed.now, UTC)

    @property
    def acked_at(self) -> datetime | None:
        """Set on the tick that first sees the step's weight acknowledged."""
        return self.at if self.snapshot.observed.is_newly_acknowledged else None

    @property
    def is_effect(self) -> bool:
        return self.decision.action is not Action.HOLD

    @property
    def summary(self) -> str:
        """Essence of the decision, without numbers: its action, code and cause, and whether it is late."""
        cause = f":{self.decision.because}" if self.decision.because else ""
        late = ":late" if self.decision.is_late else ""
        return f"{self.decision.action}:{self.decision.code}{cause}{late}"

    @property
    def warning(self) -> str:
        """The event of something that people should hear of though nothing moves.

        Blindness, a deadline that passed, a stage that waits for an approval, a stable release without a server, and
        evidence that would have rolled the candidate back, were it not excused.
        """
        if self.is_effect or self.summary == self.engine_state.last_decision:
            return ""
        if self.decision.code is Code.BLIND:
            return "rollout.blind"
        if self.decision.code is Code.OVERDUE or self.decision.is_late:
            return "rollout.overdue"
        is_live = self.decision.code is Code.STABLE_GONE and self.snapshot.desired.weight_bp > 0
        if is_live or (self.decision.code is Code.NO_ROLLBACK_TARGET and self.snapshot.is_stable_gone):
            return "rollout.held"
        if self.decision.code is Code.AWAITING_APPROVAL and self.decision.stage:
            return "rollout.approval_requested"
        return "rollout.held" if self.decision.code in EXCUSES and self.decision.guard else ""


@dataclass(frozen=True)
class Outcome:
    """Result of a tick: state for the next tick, and rows."""

    engine_state: EngineState
    history: OpenSegment
    is_recorded: bool  # whether the decision becomes a row: it has an effect, or is new
    block: Segment | None = None  # that is full, and becomes a row
    problem: str = ""  # why ticks of that block could not be judged, if so

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is lost but the resolution of counts should the tick be undone: gateways count on."""
        return self.block is None and not self.is_recorded


def outcome_of(tick: Tick) -> Outcome:
    """The tick's results, before anything is written."""
    is_recorded = tick.is_effect or (tick.summary != tick.engine_state.last_decision and _may_record(tick))
    state, history = tick.engine_state, tick.history
    if is_recorded:
        state = replace(state, last_decision=tick.summary)
        recorded = 0 if tick.is_effect else history.spoken[0] + 1
        history = replace(history, spoken=(recorded, tick.snapshot.observed.now))
    if tick.decision.action is Action.PROMOTE and not state.is_promoting:
        state = replace(state, is_promoting=True)
    if tick.decision.action is Action.WITHDRAW:
        state = replace(state, is_promoting=False)  # stable has its place in the route again
    if tick.snapshot.desired.state not in OBSERVED:
        return Outcome(state, history, is_recorded)
    history = history.after(tick.record)
    # at other ticks for each rollout, so that not all of them store in the same turn
    if is_recorded or (tick.number + tick.snapshot.identity.rollout_id) % BLOCK_ROWS == 0:
        return Outcome(state, history.stored(), is_recorded, history.block(), history.problem)
    return Outcome(state, history, is_recorded)


def _may_record(tick: Tick) -> bool:
    """Whether a hold for a new reason is recorded. Reasons that take turns for days would else fill the log."""
    count, last_at = tick.history.spoken
    if count < FREELY_RECORDED:
        return True
    longest_s = WARNED_WITHIN_S if tick.warning else LONGEST_WAIT_S
    wait_s = min(longest_s, FIRST_WAIT_S * 2.0 ** min(30, count - FREELY_RECORDED))
    return tick.snapshot.observed.now - last_at >= wait_s
