"""What to do next with a rollout: one pure, total function from a snapshot to a decision with one sentence of reason.

Order of questions: is it broken? (beats everything, in every live state) · can we tell? (if not: hold, never advance) ·
is it long enough and proven? (advance, bake, promote; past the deadline: what the policy says) · may it be opened now?
(approvals, freeze windows, servers).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from accounts.core.quantities import weight_text
from rollouts.core.approvals import missing
from rollouts.core.deadline import is_late, late, overdue, undecided
from rollouts.core.decision import OPENING, Action, Code, Decision, facts_of, hold, listed
from rollouts.core.freeze import frozen, in_words
from rollouts.core.inconclusive import inconclusive_because
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.policy import FULL_BP, Source
from rollouts.core.rules.loading import preparing
from rollouts.core.rules.over_objective import BLAME_LOG_E
from rollouts.core.rules.replica_differs import or_one_replica, replacing
from rollouts.core.rules.second_look import after_crossing, probed_only
from rollouts.core.rules.stable_gone import lacking, lacking_words, replacement, way_by_hand
from rollouts.core.rules.stable_replica import comparable, renewing
from rollouts.core.rules.table import findings, most_severe
from rollouts.core.rules.verdicts import is_fix
from rollouts.core.shortage import NO_ROOM, shortage_at
from rollouts.core.snapshot import Snapshot

#: If the counts scatter by more than this factor, the hold states it as the reason for its number of samples.
CLUMPED = 2.0
#: The lightest evidence against the candidate that counts: a tenth more likely if it is worse.
LEAST_LOG_E = math.log(1.1)


def decide(snapshot: Snapshot) -> Decision:
    """The one decision for this snapshot. Never raises, never advances on ignorance; a breach beats everything."""
    decision = _decided(snapshot)
    if not snapshot.is_by_hand or snapshot.desired.is_promoting or decision.action is not Action.HOLD:
        return decision
    return replace(decision, reason=f"The promotion by hand waits. {decision.reason}")


def _decided(snapshot: Snapshot) -> Decision:
    state = snapshot.desired.state
    if state is RolloutState.AWAITING_APPROVAL:
        return Decision(Action.HOLD, Code.AWAITING_APPROVAL, "Waiting for an approval; no traffic has moved.")
    if state is RolloutState.PREPARING:
        return _opened(snapshot, preparing(snapshot))
    if snapshot.where is RolloutState.SECOND_LOOK:
        convicted = most_severe(findings(probed_only(snapshot)))
        return _opened(snapshot, convicted or after_crossing(snapshot))
    if state in LIVE:
        return _live(snapshot)
    if state in {RolloutState.ROLLING_BACK, RolloutState.STUCK}:
        return Decision(Action.HOLD, Code.ROLLING_BACK, f"Taking all traffic back to {snapshot.identity.stable_name}.")
    return Decision(Action.HOLD, Code.ENDED, "The rollout has ended.")


def _live(s: Snapshot) -> Decision:
    """Returns the most severe finding, unless one replica explains it; else the hold without data; else the next step."""
    found = findings(s)
    if (worst := most_severe(found)) is not None:
        return comparable(s, late(s, or_one_replica(s, worst, found)))
    if (replaced := replacement(s)) is not None:
        return _opened(s, replaced)
    held = inconclusive_because(s) or replacing(s) or renewing(s)
    return comparable(s, held or _opened(s, _progress(s)))


# --- is it proven? ----------------------------------------------------------------------------------------------------


def _progress(s: Snapshot) -> Decision:
    if s.desired.is_promoting and s.desired.state is RolloutState.BAKING:
        by_hand = ", promoted by hand: no evidence was waited for" if s.people.promote_now else ""
        said = f"All traffic went to {s.identity.candidate_name}{by_hand}."
        return Decision(Action.PROMOTE, Code.PROMOTING, said, facts_of(s))
    if s.is_by_hand:
        return _by_hand(s)
    if (ended := overdue(s)) is not None:
        return ended
    missing = _missing(s)
    if missing:
        said = f"Holding at {weight_text(s.desired.weight_bp)}: {'; '.join(missing)}"
        held = hold(s, Code.NEED_MORE, said)
        return undecided(s, held) if is_late(s) else held
    return _onward(s, _proof(s))


def _by_hand(s: Snapshot) -> Decision:
    """A person's promotion, with the skipped waits."""
    lacks = _missing(s)
    what = f"no evidence was waited for ({'; '.join(lacks)})" if lacks else "every guard is proven"
    said = f"Promoting {s.identity.candidate_name} by hand: {what}."
    return Decision(Action.PROMOTE, Code.BY_HAND, said, facts_of(s) | {"not_waited_for": lacks})


def _onward(s: Snapshot, proof: str) -> Decision:
    """What comes after a stage that is proven."""
    if s.desired.state is RolloutState.BAKING:
        return Decision(Action.PROMOTE, Code.PROVEN, f"{proof}: promoting it.", facts_of(s))
    if s.desired.state is RolloutState.SHADOWING:
        weight = weight_text(s.policy.steps[0].weight_bp)
        return Decision(
            Action.START, Code.PROVEN, f"{proof}: sending it {weight} of the traffic.", facts_of(s) | {"to_index": 0}
        )
    index = s.desired.step_index + 1
    if index < len(s.policy.steps):
        weight = weight_text(s.policy.steps[index].weight_bp)
        return Decision(
            Action.ADVANCE, Code.PROVEN, f"{proof}: advancing to {weight}.", facts_of(s) | {"to_index": index}
        )
    beside = f" with {s.identity.stable_name} warm beside it" if s.identity.has_stable else ""
    said = f"{proof}: baking at {weight_text(s.policy.bake.weight_bp)} for {s.policy.bake.min_s:.0f} s{beside}."
    return Decision(Action.BAKE, Code.PROVEN, said, facts_of(s) | {"to_index": len(s.policy.steps)})


def _proof(s: Snapshot) -> str:
    on = listed(
        judged.guard.words for judged in s.acting if judged.candidate and judged.log_e_fine >= s.policy.bar_fine
    )
    over = f"over {_samples(s)} {'comparisons' if s.desired.state is RolloutState.SHADOWING else 'attempts'}"
    if not on:
        return f"No guard has a sample of {s.identity.candidate_name} {over}, and none must have data"
    fixed = [judged.guard.words for judged in s.acting if is_fix(s, judged) and judged.rate_candidate > judged.limit]
    if fixed:
        both = f"{s.identity.candidate_name} is over the objective of {listed(fixed)}, as {s.identity.stable_name} is"
        return f"{both}, and proven better {over}"
    if s.identity.has_stable:
        return f"{s.identity.candidate_name} is as good as {s.identity.stable_name} on {on} {over}"
    return f"{s.identity.candidate_name} meets the objectives on {on} {over}"


def _samples(s: Snapshot) -> int:
    """What counts against the stage's `min_samples`: attempts of users; while shadowing, comparisons."""
    if s.desired.state is not RolloutState.SHADOWING:
        return s.evidence.step_attempts
    return max((judged.candidate for judged in s.acting if judged.guard.source is Source.PROBER), default=0)


def _missing(s: Snapshot) -> list[str]:
    """Missing conditions of the stage, each as words with numbers; empty when it may end."""
    stage, missing = s.stage, []
    if s.observed.step_started_at is None:
        return ["the step has not begun"]
    samples = _samples(s)
    words = "comparisons made" if s.desired.state is RolloutState.SHADOWING else "attempts seen"
    unproven = [
        one for one in s.acting if one.guard.needs_proof and one.log_e_fine < s.policy.bar_fine and _is_needed(s, one)
    ]
    # Of several targets in one unit only the farthest is stated: the stage waits for it.
    alike = [one for one in unproven if one.to_go is not None and _is_counted_alike(s, one)]
    farthest = max(alike, key=lambda one: one.to_go or 0, default=None)
    suspect = [
        one for one in s.acting if s.identity.has_stable and one.log_e_worse >= _waits_from(one) and _is_needed(s, one)
    ]
    missing += [
        f"{one.guard.words} look worse than {s.identity.stable_name}'s, and that is not ruled out yet"
        for one in suspect
    ]
    left = max(0, stage.min_samples - samples)
    if farthest is not None and (farthest.to_go or 0) < left:
        farthest = None
    for one in unproven:
        if one is farthest:
            missing.append(f"{_unproven(one)} ({samples} {words})" if left else _unproven(one))
        elif one not in alike:
            missing.append(_unproven(one))
    if left and farthest is None:
        missing.append(f"{samples} of {stage.min_samples} {words}")
    if s.elapsed_s < stage.min_s:
        missing.append(f"{s.elapsed_s:.0f} s of {stage.min_s:.0f} s minimum passed")
    return missing


def _waits_from(judged: Judged) -> float:
    """Returns the log evidence against the candidate from which on a stage waits.

    A guard of callers' mistakes is never waited for to be proven fine, so the lightest evidence is enough. Callers send the
    same mistakes to both releases, and cannot raise it.
    """
    return BLAME_LOG_E if judged.guard.needs_proof else LEAST_LOG_E


def _is_needed(s: Snapshot, judged: Judged) -> bool:
    """Whether the stage waits for this guard's proof. Users' requests reach the candidate only after shadowing.

    A measure of streams has no proof if nobody asks for streams.
    """
    if s.desired.state is RolloutState.SHADOWING and judged.guard.source is not Source.PROBER:
        return False
    is_asked = judged.stable > 0 or not judged.guard.kind.measure
    return judged.candidate > 0 or (judged.guard.must_have_data and is_asked)


def _is_counted_alike(s: Snapshot, judged: Judged) -> bool:
    """Whether the guard's samples are those of the stage's `min_samples`: attempts of users, or comparisons if it shadows."""
    if s.desired.state is RolloutState.SHADOWING:
        return judged.guard.source is Source.PROBER
    return judged.guard.source is Source.GATEWAY


def _unproven(judged: Judged) -> str:
    if judged.to_go is None:
        return f"{judged.guard.words} are not proven good enough yet ({judged.bad_candidate} of {judged.candidate} attempts)"
    plural = "s" if judged.to_go != 1 else ""
    clumps = f" (they come in clumps: {judged.phi:.0f} count as one)" if judged.phi >= CLUMPED else ""
    return f"{judged.guard.words} need about {judged.to_go} more sample{plural}{clumps}"


# --- may it be opened now? --------------------------------------------------------------------------------------------


def _opened(s: Snapshot, decision: Decision) -> Decision:
    """The decision, unless it would open in a freeze window, without the approvals that the policy asks for, or
    without the servers that the weight takes."""
    if decision.action not in OPENING or decision.code is Code.PROMOTING:
        return decision
    is_replacing = decision.action is Action.REPLACE  # fewer servers than the weight takes are more than none
    held = _unreplaced(s) if is_replacing else _frozen(s) or _unapproved(s, decision) or _crowded(s, decision)
    return replace(held, facts={**decision.facts, **held.facts, "held": decision.action.value}) if held else decision


def _frozen(s: Snapshot) -> Decision | None:
    found = frozen(s.policy.freeze_windows, datetime.fromtimestamp(s.observed.now, UTC))
    if found is None:
        return None
    window, until = found
    why = f" ({window.why.rstrip('.')})" if window.why else ""
    said = f"Ready to go on, but changes are frozen until {in_words(window, until)}{why}."
    return Decision(Action.HOLD, Code.FROZEN, said, {"until": until.isoformat()})


def _unapproved(s: Snapshot, decision: Decision) -> Decision | None:
    stage = {
        Action.PROMOTE: "promote",
        Action.BAKE: "bake",
        Action.ADVANCE: s.policy.stage_name(s.desired.step_index + 1),
    }.get(decision.action, "start")
    return _lacks(s, missing(s.policy.approvals, s.people.approvals, [stage]))


def _unreplaced(s: Snapshot) -> Decision | None:
    """The hold of a candidate that would take the place of a stable release without a server. A person need not wait for a freeze."""
    if (held := _frozen(s)) is not None:
        return replace(held, reason=f"{held.reason} {way_by_hand(s)}")
    return _lacks(s, lacking(s))


def _lacks(s: Snapshot, left: Mapping[str, int]) -> Decision | None:
    """The hold that names every approval in `left`; None if nothing is left. Its facts are of the first stage."""
    if not left:
        return None
    stage = next(iter(left))
    facts = {"given": s.people.approvals.get(stage, 0), "wanted": s.policy.approvals[stage]}
    said = f"Ready to go on, but {lacking_words(left)}."
    return Decision(Action.HOLD, Code.AWAITING_APPROVAL, said, facts, stage=stage)


def _crowded(s: Snapshot, decision: Decision) -> Decision | None:
    """A single server answers copies, and none does if it has no capacity."""
    if decision.action is Action.SHADOW:
        return None
    weight_bp = {
        Action.PROMOTE: FULL_BP,
        Action.BAKE: s.policy.bake.weight_bp,
        Action.ADVANCE: s.policy.steps[min(s.desired.step_index + 1, len(s.policy.steps) - 1)].weight_bp,
    }.get(decision.action, s.policy.steps[0].weight_bp)
    headroom = s.observed.headroom
    found = shortage_at(headroom, weight_bp, s.routed_per_s, s.identity)
    if found is None:
        return None
    said = f"Ready to go on, but {found.said}."
    if found.because != NO_ROOM:
        left = headroom.needed_at(weight_bp) - headroom.candidate
        said = f"Ready to go on, but {found.said}: waiting for {'one' if left == 1 else left} more. {headroom.why}".rstrip()
    return Decision(Action.HOLD, Code.NEEDS_REPLICAS, said, found.facts, because=found.because)
