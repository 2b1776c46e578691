"""Can we tell? If not, the weight stays, whatever the clock says; and nothing ever rolls back on ignorance alone,
unless the policy asks for it after a time that it names."""

from __future__ import annotations

from dataclasses import replace

from accounts.core.quantities import share_text, weight_text
from rollouts.core.confounders import is_split_off
from rollouts.core.decision import REFUSE_FORCED, Action, Code, Decision, facts_of, hold, sentence
from rollouts.core.judged import Judged, by_chance, excess_of
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import OnUndecided, Source
from rollouts.core.rollback_rules import burns, is_fix, shared_incident
from rollouts.core.snapshot import Snapshot
from rollouts.core.stable_gone import no_target

#: A release sheds when so many requests of a step were refused, more than this share of what was drawn for it, and more than so
#: many times stable's: a burst or two that both arms feel is none.
LEAST_SHED, SHED_FRAC, SHED_RATIO = 10, 0.01, 2.0
#: The cause of a hold for a replica of stable.
STABLE_REPLICA = "stable_replica"
#: Callers leave the candidate more often if so many requests, and this share of all, are given up beyond stable's share and beyond
#: what chance adds, in standard deviations. A ratio would hide them behind many that are given up on both arms.
LEAST_GIVEN_UP, GIVEN_UP_FRAC, GIVEN_UP_SIGMAS = 10, 0.01, 4.0
#: While most of stable's requests fail, a candidate answers if the share that it fails of this number of newest attempts is smaller
#: by more than this ratio. With 10 attempts and a ratio of 2, chance opened a stage into 245 of 300 outages of 60 % at 2/s.
LEAST_ANSWERED, ANSWERED_RATIO = 20, 4
#: Readings without evidence of time, about one a second, after which the gateways refuse forced requests until the rollout ends.
MOST_FORCED = 300


def inconclusive_because(s: Snapshot) -> Decision | None:
    """A hold, if anything keeps us from judging; None when the numbers can be trusted."""
    found = telemetry_unavailable(s) or _unacknowledged(s) or (None if s.is_by_hand else _source_unavailable(s))
    if found is None and s.desired.state is RolloutState.PAUSED:
        return hold(s, Code.PAUSED, f"Paused at {weight_text(s.desired.weight_bp)} until someone resumes it.")
    if found is None and not s.desired.is_promoting:
        found = _no_target(s) or _lacks_evidence(s) or _split(s) or _shedding(s) or _incident(s)
    return found and late(s, found)


def _lacks_evidence(s: Snapshot) -> Decision | None:
    """A promotion by hand waits for no evidence; what speaks against the candidate holds it all the same."""
    return None if s.is_by_hand else _no_samples(s) or _gap(s) or _forced(s) or _given_up(s)


def telemetry_unavailable(s: Snapshot) -> Decision | None:
    """A hold while the counters cannot be read; past `blind_limit_s`, the decision of `on_blind`."""
    if not s.observed.problem:
        return None
    at = f"Holding at {weight_text(s.desired.weight_bp)}"
    why = s.observed.problem_sentence or "the counters cannot be read"
    if s.evidence.blind_s < s.policy.blind_limit_s:
        return hold(s, Code.PROVIDER_DOWN, f"{at}: {why}", because=s.observed.problem)
    said = f"{at}, blind for over {s.policy.blind_limit_s:.0f} s: {why}"
    facts = facts_of(s) | {"because": s.observed.problem}
    if (
        s.policy.on_blind is OnUndecided.ROLL_BACK
        and s.identity.has_stable
        and not s.is_stable_gone
        and s.desired.state is not RolloutState.PAUSED
    ):
        return Decision(Action.ROLL_BACK, Code.BLIND, f"{sentence(said)} The policy then rolls back.", facts)
    return Decision(Action.HOLD, Code.BLIND, f"{sentence(said)} A person should look.", facts)


def _source_unavailable(s: Snapshot) -> Decision | None:
    """A source other than the gateways fails. What it would have said is not known, whatever it said before."""
    for judged in () if s.desired.is_promoting else s.acting:
        problem = s.observed.source_problems.get(judged.guard.name)
        if problem and _is_listened_to(s, judged):
            return hold(s, Code.NO_DATA, f"Holding at {weight_text(s.desired.weight_bp)}: {problem}", judged)
    return None


def _is_listened_to(s: Snapshot, judged: Judged) -> bool:
    """Whether the stage needs counts that gateways do not keep. Users' requests reach the candidate only after shadowing."""
    where = s.desired.paused_in if s.desired.state is RolloutState.PAUSED else s.desired.state
    source = judged.guard.source
    is_early = where is RolloutState.SHADOWING and source is Source.PROMETHEUS
    return source is not Source.GATEWAY and judged.guard.must_have_data and not is_early


def _unacknowledged(s: Snapshot) -> Decision | None:
    if s.observed.is_acknowledged:
        return None
    late = f" for {s.evidence.unacknowledged_s:.0f} s" if s.evidence.unacknowledged_s >= s.policy.ack_deadline_s else ""
    why = f": {s.observed.ack_error}" if s.observed.ack_error else ""
    said = f"Waiting{late} for the gateways to acknowledge {weight_text(s.desired.weight_bp)}{why}"
    return hold(s, Code.NOT_ACKNOWLEDGED, said)


def _no_target(s: Snapshot) -> Decision | None:
    return no_target(s) if s.is_stable_gone else None


def _no_samples(s: Snapshot) -> Decision | None:
    at = f"Holding at {weight_text(s.desired.weight_bp)}"
    if s.desired.weight_bp > 0 and s.evidence.quiet_s >= s.policy.no_data_s:
        return hold(
            s, Code.NO_DATA, f"{at}: no attempt reached {s.identity.candidate_name} for {s.evidence.quiet_s:.0f} s"
        )
    for judged in s.acting:
        silent_s = s.evidence.silent_s.get(judged.guard.name, 0.0)
        if silent_s >= s.policy.no_data_s and _is_listened_to(s, judged):
            said = f"{at}: no count of {judged.guard.words} came for {silent_s:.0f} s"
            return hold(s, Code.NO_DATA, said, judged)
    return None


def _split(s: Snapshot) -> Decision | None:
    if not is_split_off(s):
        return None
    got = share_text(s.evidence.settled_candidate / (s.evidence.settled_candidate + s.evidence.settled_stable))
    said = f"Holding at {weight_text(s.desired.weight_bp)}: the gateways send {got} of the requests to {s.identity.candidate_name} instead"
    return hold(s, Code.NOT_ACKNOWLEDGED, said, because="split_off")


def _gap(s: Snapshot) -> Decision | None:
    """Counts were lost in this stage: what they hid cannot be known, so it takes some whole telemetry before going on."""
    wanted_s = min(s.stage.min_s, s.policy.no_data_s)
    if s.evidence.since_gap_s is None or s.evidence.since_gap_s >= wanted_s:
        return None
    said = (
        f"Holding at {weight_text(s.desired.weight_bp)}: counts were lost {s.evidence.since_gap_s:.0f} s ago; "
        f"waiting for {wanted_s:.0f} s without a gap"
    )
    return hold(s, Code.NO_DATA, said, because="telemetry_gap")


def _forced(s: Snapshot) -> Decision | None:
    """Forced calls starve a guard: most readings of the stage hold no evidence of time. Not for ever: then such calls are refused."""
    for judged in () if s.evidence.refuses_forced else s.acting:
        left_out, used = s.evidence.forced.get(judged.guard.name, (0, 0))
        if left_out <= used or judged.log_e_fine >= s.policy.bar_fine:
            continue
        said = (
            f"Holding at {weight_text(s.desired.weight_bp)}: {left_out} of {left_out + used} readings give no evidence of "
            f"{judged.guard.words}, because calls forced a release meanwhile"
        )
        if left_out < MOST_FORCED:
            return hold(
                s, Code.NO_DATA, f"{said}; stop such calls: after {MOST_FORCED} the gateways refuse them", judged
            )
        held = hold(s, Code.NO_DATA, f"{said}; from now on the gateways refuse such calls", judged)
        return replace(held, facts={**held.facts, REFUSE_FORCED: True})
    return None


def _given_up(s: Snapshot) -> Decision | None:
    """Callers leave the candidate before its answers more often than stable: the answers that are left say less of its time."""
    evidence = s.evidence
    window = evidence.given_up_candidate, evidence.settled_candidate, evidence.given_up_stable, evidence.settled_stable
    surely = excess_of(*window) - GIVEN_UP_SIGMAS * by_chance(*window[1:], 1.0)
    if not s.identity.has_stable or surely < max(LEAST_GIVEN_UP, GIVEN_UP_FRAC * evidence.settled_candidate):
        return None
    bad, routed, bad_stable, stable = window
    said = (
        f"Holding at {weight_text(s.desired.weight_bp)}: callers gave up {bad} of {routed} requests on {s.identity.candidate_name} "
        f"before an answer, and {bad_stable} of {stable} on {s.identity.stable_name}; how slow these would have been is unknown"
    )
    return hold(s, Code.NO_DATA, said, because="given_up")


def _shedding(s: Snapshot) -> Decision | None:
    """What is shed is no failure of the release, and more of it would follow with more weight."""
    shed = s.evidence.shed_candidate / s.evidence.routed_candidate if s.evidence.routed_candidate else 0.0
    shed_stable = s.evidence.shed_stable / s.evidence.routed_stable if s.evidence.routed_stable else 0.0
    if s.evidence.shed_candidate < LEAST_SHED or shed <= SHED_FRAC or shed <= SHED_RATIO * shed_stable:
        return None
    beside = f" ({share_text(shed_stable)} on {s.identity.stable_name})" if s.identity.has_stable else ""
    said = (
        f"Holding at {weight_text(s.desired.weight_bp)}: the gateways shed {share_text(shed)} of the requests for "
        f"{s.identity.candidate_name}{beside}, more than it can hold at this weight"
    )
    return hold(s, Code.NEEDS_REPLICAS, said, because="shedding")


def _incident(s: Snapshot) -> Decision | None:
    for judged in s.acting:
        if (found := _outage(s, judged)) is not None:
            return found
        if judged.is_stable_over and judged.rate_candidate > judged.limit and not is_fix(s, judged):
            return shared_incident(s, burns(s, judged), judged)
    return None


def _outage(s: Snapshot, judged: Judged) -> Decision | None:
    """Most requests fail wherever they go: that is no caller's doing, and nothing opens into it. A candidate that answers goes on."""
    if judged.stable_failing is None:
        return None
    failed, of = judged.stable_failing
    bad, attempts = s.evidence.recent.get(judged.guard.name, (0, 0))
    if attempts >= LEAST_ANSWERED and ANSWERED_RATIO * bad * of < failed * attempts:
        return None
    name = s.identity.stable_name
    said = f"most requests fail, {failed} of the last {of} on {name} and {bad} of the last {attempts} on {s.identity.candidate_name}"
    return shared_incident(s, said, judged)


# --- past a deadline --------------------------------------------------------------------------------------------------


def late(s: Snapshot, found: Decision) -> Decision:
    """The hold; past the stage's deadline, what the policy says, once."""
    if found.action is not Action.HOLD or s.desired.state is RolloutState.PAUSED or not is_late(s):
        return found
    return undecided(s, found.reason, found.code, found.facts)


def is_late(s: Snapshot) -> bool:
    """Past the stage's deadline, counted from its acknowledgement, or from its command if that never came."""
    waited_s = s.evidence.unacknowledged_s if s.observed.step_started_at is None else s.elapsed_s
    return waited_s >= s.stage.deadline_s


def undecided(s: Snapshot, said: str, code: Code, facts: dict[str, object]) -> Decision:
    """Past the deadline without proof: what the policy says. What both arms share never rolls back, nor does what is stable's alone."""
    late = f"{said.rstrip('.')}; the deadline of {s.stage.deadline_s:.0f} s has passed"
    facts = {**facts, "is_late": True}
    is_of_stable = code is Code.BOTH_ARMS_BAD or facts.get("because") == STABLE_REPLICA
    may_go_back = s.identity.has_stable and not s.is_stable_gone
    if s.policy.on_undecided is OnUndecided.ROLL_BACK and may_go_back and not is_of_stable:
        return Decision(Action.ROLL_BACK, Code.OVERDUE, f"{late}, and the policy then rolls back.", facts)
    return Decision(Action.HOLD, code, f"{late}, so it waits for proof or for a person.", facts)


def overdue(s: Snapshot) -> Decision | None:
    """Past the deadline of the whole rollout nothing opens by itself any more. None before."""
    if s.observed.total_s < s.policy.deadline_s:
        return None
    said = f"The rollout has lasted {s.observed.total_s:.0f} s, over its deadline of {s.policy.deadline_s:.0f} s"
    if s.policy.on_undecided is OnUndecided.ROLL_BACK and s.identity.has_stable and not s.is_stable_gone:
        return Decision(Action.ROLL_BACK, Code.OVERDUE, f"{said}, and the policy then rolls back.", facts_of(s))
    if s.where is RolloutState.SECOND_LOOK:  # neither of the other verbs begins a look
        resume = f"`sluicegate rollout resume {s.identity.rollout_id}`"
        return hold(s, Code.OVERDUE, f"{said}: a person must begin its next look ({resume}) or take it back.")
    return hold(s, Code.OVERDUE, f"{said}: a person must advance it, promote it or take it back.")
