"""What the evidence would say of recorded attempts if each were counted when it ends, whatever weight it began under."""

from __future__ import annotations

from pathlib import Path

from rollouts.core.counter_deltas import ERRORS, Arms, Counts, Reading
from rollouts.core.decide import decide
from rollouts.core.decision import TAKES_BACK
from rollouts.core.engine_state import EngineState, update_state
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import Policy
from rollouts.core.snapshot import Desired, Identity, Observed
from rollouts.core.stage_evidence import take_snapshot

#: So long before the first weight counting begins.
BEFORE_S = 5


def attempts_of(log: Path) -> list[tuple[float, int]]:
    """(when it ended, in seconds since the epoch; 1 if it failed) of every attempt that `faulty_code.late` noted."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(float(at), int(failed)) for at, _, failed in (line.partition(" ") for line in lines)]


def worst_as_ended(policy: Policy, stages_at: list[float], candidate: Path, stable: Path) -> str:
    """The reason code for which a rollout with these stages would have been taken back; "" if for none.

    `stages_at`: when each stage's weight was written, seconds since the epoch. The stages go on as they went.
    """
    if not stages_at:
        return ""
    arms = attempts_of(candidate), attempts_of(stable)
    last = max((at for arm in arms for at, _ in arm), default=stages_at[0])
    begin = int(stages_at[0]) - BEFORE_S
    engine_state, total = EngineState(readings={"gateway": Reading("one", begin, Counts(), Counts())}), Arms()
    for tick, at in enumerate(range(begin + 1, int(last) + 2)):
        total = total + Arms(*[_between(arm, at - 1, at) for arm in arms])
        reading = Reading("one", at, total.candidate, total.stable)
        engine_state = update_state(
            engine_state, tick=tick, readings={"gateway": reading}, policy=policy, has_stable=True
        )
        index = sum(one < at for one in stages_at) - 1
        if index < 0:
            continue
        engine_state = _entered(engine_state, index, stages_at[index], policy)
        state = RolloutState.SHIFTING if index < len(policy.steps) else RolloutState.BAKING
        step = (*policy.steps, policy.bake)[index]
        desired = Desired(state, step_index=index, weight_bp=step.weight_bp)
        observed = Observed(at, step_started_at=stages_at[index])
        decision = decide(take_snapshot(policy, Identity(), desired, observed, engine_state))
        if decision.action in TAKES_BACK:
            return decision.code.value
    return ""


def _entered(state: EngineState, index: int, at: float, policy: Policy) -> EngineState:
    entered = state.entering(f"stage {index}", at, policy)
    return entered if entered is state else entered.acknowledged(at)


def _between(arm: list[tuple[float, int]], begin: float, end: float) -> Counts:
    ended = [failed for at, failed in arm if begin <= at < end]
    return Counts(len(ended), len(ended), {ERRORS: sum(ended)})
