"""What to do next with a rollout: one pure, total function from a snapshot to a decision with one sentence of reason.

Order of questions: is it broken? (beats everything, in every live state) · can we tell? (if not: hold, never advance) ·
is it long enough and proven? (advance, bake, promote; past the deadline: what the policy says).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.plan import FULL_BP, OnUndecided
from rollouts.core.snapshot import Judged, Snapshot


class Action(StrEnum):
    HOLD = "hold"  # keep the weight, look again
    START = "start"  # the first step
    ADVANCE = "advance"
    BAKE = "bake"
    PROMOTE = "promote"
    PAUSE = "pause"  # a person must look
    ROLL_BACK = "roll_back"
    CANCEL = "cancel"  # before any traffic


class Code(StrEnum):
    """Stable reason codes, explained in docs/rollouts.md."""

    NOT_STARTED = "not_started"
    PREPARING = "preparing"
    READY = "ready"
    STABLE_NOT_READY = "stable_not_ready"
    REPORT_NOT_VALID = "report_not_valid"
    NEVER_READY = "never_ready"
    WORSE_THAN_STABLE = "worse_than_stable"
    OBJECTIVE_BREACHED = "objective_breached"
    ALL_FAILING = "all_failing"
    SERVERS_GONE = "servers_gone"
    DIGEST_MISMATCH = "digest_mismatch"
    NO_ROLLBACK_TARGET = "no_rollback_target"
    BOTH_ARMS_BAD = "both_arms_bad"
    PROVIDER_DOWN = "provider_down"
    STALE = "stale"
    NOT_ACKNOWLEDGED = "not_acknowledged"
    NO_DATA = "no_data"
    SPLIT_OFF = "split_off"
    PAUSED = "paused"
    NEED_MORE = "need_more"
    PROVEN = "proven"
    UNDECIDED = "undecided"
    PROMOTING = "promoting"
    ROLLING_BACK = "rolling_back"
    ENDED = "ended"


#: Codes that mean "cannot tell": the weight stays whatever the clock says.
IGNORANCE = frozenset(
    {Code.PROVIDER_DOWN, Code.STALE, Code.NOT_ACKNOWLEDGED, Code.NO_DATA, Code.SPLIT_OFF, Code.BOTH_ARMS_BAD}
)
#: Failures that end at one instant (one poisoned batch, one cut connection) are one event, however many they are: the
#: readings that show failures and nothing else must lie further apart than this, in seconds.
FAILING_OVER_S = 0.4
#: Fewer attempts of stable than this say nothing about whether stable burns too.
LEAST_STABLE_ATTEMPTS = 20
#: The split is off when it lies further from what was commanded than this many standard deviations and this share.
SPLIT_SIGMAS, SPLIT_SLACK, LEAST_ROUTED = 5.0, 0.02, 200


@dataclass(frozen=True)
class Decision:
    action: Action
    code: Code
    reason: str
    facts: dict[str, Any] = field(default_factory=dict)


def decide(snapshot: Snapshot) -> Decision:
    """The one decision for this snapshot. Never raises, never advances on ignorance; a breach beats everything."""
    state = snapshot.state
    if state in {RolloutState.REQUESTED, RolloutState.AWAITING_APPROVAL}:
        return Decision(Action.HOLD, Code.NOT_STARTED, "Waiting for an approval; no traffic has moved.")
    if state is RolloutState.PREPARING:
        return _prepare(snapshot)
    if state in LIVE:
        return _breach(snapshot) or _ignorance(snapshot) or _progress(snapshot)
    if state in {RolloutState.ROLLING_BACK, RolloutState.STUCK}:
        return Decision(Action.HOLD, Code.ROLLING_BACK, f"Taking all traffic back to {snapshot.stable_name}.")
    return Decision(Action.HOLD, Code.ENDED, "The rollout has ended.")


def _prepare(s: Snapshot) -> Decision:
    if s.digest_mismatch:
        return Decision(Action.CANCEL, Code.DIGEST_MISMATCH, f"{s.digest_mismatch} No traffic was sent to it.")
    if s.report_problem:
        return Decision(
            Action.CANCEL, Code.REPORT_NOT_VALID, f"{s.report_problem} No traffic was sent to {s.candidate_name}."
        )
    if not s.is_candidate_ready:
        why = f" {s.deployment_problem}" if s.deployment_problem else ""
        if s.waited_s >= s.policy.prepare_deadline_s:
            return Decision(
                Action.CANCEL, Code.NEVER_READY, f"{s.candidate_name} was not ready after {s.waited_s:.0f} s.{why}"
            )
        return Decision(Action.HOLD, Code.PREPARING, f"Waiting for {s.candidate_name} to be loaded and warm.{why}")
    if not s.is_stable_ready:
        return Decision(
            Action.HOLD,
            Code.STABLE_NOT_READY,
            f"{s.candidate_name} is ready, but {s.stable_name}, the rollback target, has no serving server; waiting for it.",
        )
    weight, begin = percent(s.policy.steps[0].weight_bp), {"to_index": 0}
    if s.has_stable:
        return Decision(
            Action.START, Code.READY, f"{s.candidate_name} is warm: sending it {weight} of the traffic.", begin
        )
    return Decision(
        Action.START,
        Code.READY,
        f"{s.candidate_name} is the first release here, so it takes {weight} at once and is held to the absolute objectives only.",
        begin,
    )


# --- is it broken? ----------------------------------------------------------------------------------------------------


def _breach(s: Snapshot) -> Decision | None:
    """A reason to take traffic away, or to say that it cannot be taken anywhere; None if nothing is proven broken."""
    if s.digest_mismatch:
        return _take_back(s, Code.DIGEST_MISMATCH, s.digest_mismatch)
    if s.candidate_servers == 0:
        if s.has_stable and s.stable_servers == 0:
            return _both_bad(s, "neither release has a serving server")
        return _take_back(s, Code.SERVERS_GONE, f"{s.candidate_name} has no serving server left.")
    for judged in s.judged:
        if judged.log_e_worse >= s.bar_worse and s.has_stable:
            return _take_back(s, Code.WORSE_THAN_STABLE, _worse(s, judged), judged)
    if s.all_failing >= s.policy.all_failing_attempts and s.all_failing_s > FAILING_OVER_S:
        if s.has_stable and s.is_stable_failing:
            return _both_bad(s, "every attempt fails on both releases")
        said = f"The last {s.all_failing} attempts on {s.candidate_name} all failed, in readings {s.all_failing_s:.1f} s apart."
        return _take_back(s, Code.ALL_FAILING, said)
    over = [found for judged in s.judged if judged.log_e_over >= s.bar_worse and (found := _over(s, judged))]
    # What both arms share excuses only itself: another guard that the candidate alone breaks is still a breach.
    return next((found for found in over if found.code is not Code.BOTH_ARMS_BAD), over[0] if over else None)


def _over(s: Snapshot, judged: Judged) -> Decision | None:
    """The candidate is over the objective. It is blamed only where stable, at the same time, is not over it too."""
    if s.has_stable and judged.stable < LEAST_STABLE_ATTEMPTS:
        return None
    if s.has_stable and judged.rate_stable > judged.limit:
        return _both_bad(
            s,
            f"{judged.guard.words} are at {share(judged.rate_candidate)} on {s.candidate_name} "
            f"and at {share(judged.rate_stable)} on {s.stable_name}, over {share(judged.limit)}",
            judged,
        )
    said = (
        f"{_cap(judged.guard.words)} of {s.candidate_name} are at {share(judged.rate_candidate)} "
        f"({judged.bad_candidate} of {judged.candidate} attempts), proven over the objective's {share(judged.limit)}."
    )
    return _take_back(s, Code.OBJECTIVE_BREACHED, said, judged)


def _take_back(s: Snapshot, code: Code, why: str, judged: Judged | None = None) -> Decision:
    facts = _facts(s, judged) | {"breach": code.value}
    if s.has_stable:
        return Decision(Action.ROLL_BACK, code, f"{why} Rolling back to {s.stable_name}.", facts)
    said = f"{why} There is no earlier release to go back to: it keeps its traffic, and a person must act."
    action = Action.HOLD if s.state is RolloutState.PAUSED else Action.PAUSE
    return Decision(action, Code.NO_ROLLBACK_TARGET, said, facts)


def _both_bad(s: Snapshot, what: str, judged: Judged | None = None) -> Decision:
    said = f"Holding at {percent(s.commanded_bp)}: {what}, so it is not the release that is to blame."
    return _cannot_tell(s, Code.BOTH_ARMS_BAD, said, judged)


def _worse(s: Snapshot, judged: Judged) -> str:
    return (
        f"{_cap(judged.guard.words)} of {s.candidate_name} are at {share(judged.rate_candidate)} ({judged.bad_candidate} of "
        f"{judged.candidate} attempts) against {share(judged.rate_stable)} ({judged.bad_stable} of {judged.stable}) on "
        f"{s.stable_name} at the same time: worse beyond doubt."
    )


# --- can we tell? -----------------------------------------------------------------------------------------------------


def _ignorance(s: Snapshot) -> Decision | None:
    """A hold, if anything keeps us from judging; None when the numbers can be trusted."""
    at = f"Holding at {percent(s.commanded_bp)}"
    if s.problem:
        code = Code.STALE if s.problem == Code.STALE else Code.PROVIDER_DOWN
        return _cannot_tell(s, code, f"{at}: {s.problem_sentence or 'the counters cannot be read'}")
    if not s.is_acknowledged:
        late = f" for {s.unacknowledged_s:.0f} s" if s.unacknowledged_s >= s.policy.ack_deadline_s else ""
        why = f": {s.ack_error}" if s.ack_error else ""
        return _cannot_tell(
            s, Code.NOT_ACKNOWLEDGED, f"Waiting{late} for the gateways to acknowledge {percent(s.commanded_bp)}{why}"
        )
    if s.state is RolloutState.PAUSED:
        return Decision(
            Action.HOLD, Code.PAUSED, f"Paused at {percent(s.commanded_bp)} until someone resumes it.", _facts(s)
        )
    if s.is_promoting:
        return None
    if s.has_stable and s.stable_servers == 0:
        said = f"{at}: {s.stable_name}, the rollback target, has no serving server."
        return Decision(Action.HOLD, Code.STABLE_NOT_READY, said, _facts(s))
    if s.commanded_bp > 0 and s.quiet_s >= s.policy.no_data_s:
        return _cannot_tell(s, Code.NO_DATA, f"{at}: no attempt reached {s.candidate_name} for {s.quiet_s:.0f} s")
    if is_split_off(s):
        said = f"{at}: the gateways send {share(s.observed_frac or 0.0)} of the requests to {s.candidate_name} instead"
        return _cannot_tell(s, Code.SPLIT_OFF, said)
    for judged in s.judged:
        burning = s.has_stable and judged.log_e_stable_over >= s.bar_worse
        if burning and judged.rate_candidate > judged.limit:
            return _both_bad(
                s, f"{judged.guard.words} are at {share(judged.rate_stable)} on {s.stable_name} too", judged
            )
    return None


def is_split_off(s: Snapshot) -> bool:
    """Whether the measured split cannot be the commanded one by chance."""
    routed = s.routed_candidate + s.routed_stable
    if not s.has_stable or routed < LEAST_ROUTED:
        return False
    wanted = s.commanded_bp / FULL_BP
    slack = SPLIT_SLACK + SPLIT_SIGMAS * math.sqrt(wanted * (1 - wanted) / routed)
    return abs(s.routed_candidate / routed - wanted) > slack


def _cannot_tell(s: Snapshot, code: Code, said: str, judged: Judged | None = None) -> Decision:
    """A hold; past the step's deadline, what the policy says, once."""
    facts = _facts(s, judged)
    if s.state is RolloutState.PAUSED or not _is_late(s):
        return Decision(Action.HOLD, code, _stop(said), facts)
    return _undecided(s, said, code, facts)


def _is_late(s: Snapshot) -> bool:
    """Past the stage's deadline, counted from its acknowledgement, or from its command if that never came."""
    waited_s = s.unacknowledged_s if s.step_started_at is None else s.elapsed_s
    return waited_s >= s.stage.deadline_s


def _undecided(s: Snapshot, said: str, code: Code, facts: dict[str, Any]) -> Decision:
    late = f"; the deadline of {s.stage.deadline_s:.0f} s has passed"
    if s.policy.on_undecided is OnUndecided.ROLL_BACK and s.has_stable and code is not Code.BOTH_ARMS_BAD:
        return Decision(Action.ROLL_BACK, Code.UNDECIDED, f"{said}{late}, and the policy then rolls back.", facts)
    return Decision(Action.HOLD, code, f"{said}{late}, so it waits for proof or for a person.", facts)


# --- is it proven? ----------------------------------------------------------------------------------------------------


def _progress(s: Snapshot) -> Decision:
    if s.is_promoting:
        return Decision(Action.PROMOTE, Code.PROMOTING, f"{s.candidate_name} now serves everything.", _facts(s))
    missing = _missing(s)
    if missing:
        said = f"Holding at {percent(s.commanded_bp)}: {'; '.join(missing)}"
        facts = _facts(s)
        return (
            _undecided(s, said, Code.UNDECIDED, facts)
            if _is_late(s)
            else Decision(Action.HOLD, Code.NEED_MORE, _stop(said), facts)
        )
    proof = (
        f"{s.candidate_name} is as good as {s.stable_name}"
        if s.has_stable
        else f"{s.candidate_name} meets the objectives"
    )
    proof = f"{proof} on {_and(judged.guard.words for judged in s.judged)} over {s.step_attempts} attempts"
    if s.state is RolloutState.BAKING:
        return Decision(Action.PROMOTE, Code.PROVEN, f"{proof}: promoting it.", _facts(s))
    if s.step_index + 1 < len(s.policy.steps):
        weight = percent(s.policy.steps[s.step_index + 1].weight_bp)
        return Decision(
            Action.ADVANCE, Code.PROVEN, f"{proof}: advancing to {weight}.", _facts(s) | {"to_index": s.step_index + 1}
        )
    beside = f" with {s.stable_name} warm beside it" if s.has_stable else ""
    said = f"{proof}: baking at {percent(s.policy.bake.weight_bp)} for {s.policy.bake.min_s:.0f} s{beside}."
    return Decision(Action.BAKE, Code.PROVEN, said, _facts(s) | {"to_index": len(s.policy.steps)})


def _missing(s: Snapshot) -> list[str]:
    """What the step still lacks, each as words with numbers; empty when it may end."""
    stage, missing = s.stage, []
    if s.step_started_at is None:
        return ["the step has not begun"]
    for judged in s.judged:
        if judged.log_e_fine < s.bar_fine:
            missing.append(_unproven(judged))
    if s.step_attempts < stage.min_samples:
        missing.append(f"{s.step_attempts} of {stage.min_samples} attempts seen")
    if s.elapsed_s < stage.min_s:
        missing.append(f"{s.elapsed_s:.0f} s of {stage.min_s:.0f} s minimum passed")
    return missing


def _unproven(judged: Judged) -> str:
    if judged.to_go is None:
        return f"{judged.guard.words} are not proven good enough yet ({judged.bad_candidate} of {judged.candidate} attempts)"
    plural = "s" if judged.to_go != 1 else ""
    return f"{judged.guard.words} need about {judged.to_go} more sample{plural}"


# --- words and facts --------------------------------------------------------------------------------------------------


def percent(basis_points: int) -> str:
    """`25 %`, `0.5 %`."""
    return f"{basis_points / 100:g} %"


def share(value: float) -> str:
    """A share in [0, 1] as a percentage with three significant digits."""
    return f"{value * 100:.3g} %"


def _cap(text: str) -> str:
    return text[:1].upper() + text[1:]


def _stop(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _and(words: Any) -> str:
    parts = list(words)
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _facts(s: Snapshot, judged: Judged | None = None) -> dict[str, Any]:
    """Numbers behind the sentence, for machines; evidence as log E with the bar that it is compared with."""
    facts: dict[str, Any] = {
        "weight_bp": s.commanded_bp,
        "step_index": s.step_index,
        "elapsed_s": round(s.elapsed_s, 3),
        "step_attempts": s.step_attempts,
        "all_failing": s.all_failing,
        "all_failing_s": round(s.all_failing_s, 3),
        "bar_worse": round(s.bar_worse, 4),
        "bar_fine": round(s.bar_fine, 4),
        "guards": {one.guard.name: evidence_of(one) for one in s.judged},
    }
    if judged is not None:
        facts["guard"] = judged.guard.name
    return facts


def evidence_of(judged: Judged) -> dict[str, Any]:
    """One guard's numbers as JSON."""
    return {
        "bad_candidate": judged.bad_candidate,
        "candidate": judged.candidate,
        "bad_stable": judged.bad_stable,
        "stable": judged.stable,
        "phi": round(judged.phi, 4),
        "log_e_worse": round(judged.log_e_worse, 4),
        "log_e_fine": round(judged.log_e_fine, 4),
        "log_e_over": round(judged.log_e_over, 4),
        "log_e_stable_over": round(judged.log_e_stable_over, 4),
    }
