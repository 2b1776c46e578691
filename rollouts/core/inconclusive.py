"""Can we tell? If not, the weight stays, whatever the clock says; and nothing ever rolls back on ignorance alone,
unless the policy asks for it after a time that it names."""

from __future__ import annotations

from accounts.core.quantities import share_text, weight_text
from rollouts.core.deadline import late
from rollouts.core.decision import Code, Decision, hold
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import Source
from rollouts.core.rules.blind import telemetry_unavailable
from rollouts.core.rules.confounders import is_split_off
from rollouts.core.rules.forced_calls import forced_calls
from rollouts.core.rules.lost_counts import lost_counts
from rollouts.core.rules.stable_gone import no_target
from rollouts.core.rules.verdicts import burns, is_fix, shared_incident
from rollouts.core.snapshot import Snapshot
from rollouts.core.two_by_two import by_chance, excess_of

#: A release sheds when so many requests of a step were refused, more than this share of what was drawn for it, and more than so
#: many times stable's: a burst or two that both arms feel is none.
LEAST_SHED, SHED_FRAC, SHED_RATIO = 10, 0.01, 2.0
#: Callers leave the candidate more often if so many requests, and this share of all, are given up beyond stable's share and beyond
#: what chance adds, in standard deviations. A ratio would hide them behind many that are given up on both arms.
LEAST_GIVEN_UP, GIVEN_UP_FRAC, GIVEN_UP_SIGMAS = 10, 0.01, 4.0
#: While most of stable's requests fail, a candidate answers if the share that it fails of this number of newest attempts is smaller
#: by more than this ratio. With 10 attempts and a ratio of 2, chance opened a stage into 245 of 300 outages of 60 % at 2/s.
LEAST_ANSWERED, ANSWERED_RATIO = 20, 4


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
    return None if s.is_by_hand else _no_samples(s) or lost_counts(s) or forced_calls(s) or _given_up(s)


def _source_unavailable(s: Snapshot) -> Decision | None:
    """A source other than the gateways fails. Its verdict is unknown, even if it had one before."""
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


def _given_up(s: Snapshot) -> Decision | None:
    """Callers leave the candidate before its answers more often than stable: the remaining answers show less of its time."""
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
    """A shed request is no failure of the release, and more weight would shed more."""
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
    recent = s.evidence.tracker(judged.guard.name).recent
    bad, attempts = recent.bad, recent.attempts
    if attempts >= LEAST_ANSWERED and ANSWERED_RATIO * bad * of < failed * attempts:
        return None
    name = s.identity.stable_name
    said = f"most requests fail, {failed} of the last {of} on {name} and {bad} of the last {attempts} on {s.identity.candidate_name}"
    return shared_incident(s, said, judged)
