"""Is the candidate broken? Asked in every live state, before anything else.

Hard facts first (contents, servers, a row of failures), then the evidence of each guard, then the budget. What proves that
the candidate fares worse is not yet the release's fault: confounders are looked for before it is blamed.
"""

from __future__ import annotations

import math

from accounts.core.quantities import share_text, weight_text
from rollouts.core import confounders
from rollouts.core.decision import Action, Code, Decision, capital, facts_of, hold
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import Source
from rollouts.core.snapshot import Snapshot
from rollouts.core.stable_gone import way_on

#: Failures that end at one instant (one poisoned batch, one cut connection) are one event, however many they are: the
#: readings that show failures and nothing else must lie further apart than this, in seconds.
FAILING_OVER_S = 0.4
#: Among so many attempts a half may fail by chance where all of fewer would not: so many times the failures of a row without a success.
MOSTLY_TIMES = 2
#: Fewer attempts of stable than this say nothing about whether stable burns too.
LEAST_STABLE_ATTEMPTS = 20
#: For an objective the candidate is blamed only where it also looks worse than stable at the same time, ten to one: in an
#: incident of both arms the one with more traffic is proven over it first. Source: docs/calibration.md, shared incidents.
BLAME_LOG_E = math.log(10)
#: What is over the tolerance counts against the budget only as far as it exceeds what chance may add, in standard deviations.
BUDGET_SIGMAS = 4.0
#: Evidence of users' traffic that an ordinary incident can show too, so that it convicts at the last look only.
_CROSSINGS = frozenset({Code.WORSE_THAN_STABLE, Code.OBJECTIVE_BREACHED, Code.ALL_FAILING, Code.MOSTLY_FAILING})


def breach(s: Snapshot) -> Decision | None:
    """A reason to take traffic away, or to say that it cannot be taken anywhere; None if nothing is proven broken."""
    hard = _hard_fact(s)
    if hard is not None:
        return hard
    found = []
    for rule in (_relative, _failing, _mostly_failing, _over_objective, _spent):
        one = rule(s)
        if one is not None and one.action is Action.ROLL_BACK:
            return one  # nothing is more severe
        if one is not None:
            found.append(one)
    # What both arms share excuses only itself: another guard that the candidate alone breaks is still a breach.
    return _most_severe(found)


def _hard_fact(s: Snapshot) -> Decision | None:
    if s.observed.digest_mismatch:
        return rollback_decision(s, Code.DIGEST_MISMATCH, s.observed.digest_mismatch)
    if s.evidence.is_candidate_gone:
        if s.identity.has_stable and s.observed.stable_servers == 0:
            return shared_incident(s, "neither release has a serving server")
        return rollback_decision(s, Code.SERVERS_GONE, f"{s.identity.candidate_name} has no serving server left.")
    return None


def _failing(s: Snapshot) -> Decision | None:
    if s.evidence.all_failing < s.policy.all_failing_attempts or s.evidence.all_failing_s <= FAILING_OVER_S:
        return None
    own = s.evidence.all_failing if s.evidence.own_failing is None else s.evidence.own_failing
    # Once promotion has begun stable gets nothing: there is nobody to compare with, and second attempts meet the candidate again.
    if (
        s.identity.has_stable
        and not s.desired.is_promoting
        and (own < s.policy.all_failing_attempts or not s.evidence.is_stable_better)
    ):
        said = (
            f"the last {s.evidence.all_failing} attempts on {s.identity.candidate_name} failed, "
            f"and {s.identity.stable_name} does not clearly fare better"
        )
        return shared_incident(s, said)
    burning = next((one for one in s.evidence.judged if one.guard.kind.is_failure and one.is_stable_over), None)
    if burning is not None:  # then rows come by chance; a candidate that fares worse still is told by the evidence
        return shared_incident(
            s, f"the last {s.evidence.all_failing} attempts failed, and {burns(s, burning)}", burning
        )
    said = (
        f"The last {s.evidence.all_failing} attempts on {s.identity.candidate_name} all failed, "
        f"in readings {s.evidence.all_failing_s:.1f} s apart."
    )
    return rollback_decision(s, Code.ALL_FAILING, said)


def _mostly_failing(s: Snapshot) -> Decision | None:
    """More than half fails, reading after reading, and stable does not: evidence would take this for a clump for some seconds longer.

    Only beside a stable that gets traffic and keeps to its objective, and beyond what the guard tolerates of its failures.
    """
    judged = next((one for one in s.acting if one.guard.kind.is_failure), None)
    if judged is None or not s.identity.has_stable or s.desired.is_promoting or judged.is_stable_over:
        return None
    row, least_bad = s.evidence.mostly, MOSTLY_TIMES * s.policy.all_failing_attempts
    tolerated_frac = judged.guard.roll_back_over.of(row.bad_stable / max(1, row.attempts_stable))
    if not row.is_proven(least_bad=least_bad, over_s=FAILING_OVER_S, tolerated_frac=tolerated_frac):
        return None
    said = (
        f"{row.bad} of the last {row.attempts} attempts on {s.identity.candidate_name} failed, in {row.readings} readings in a row, and "
        f"{row.bad_stable} of {row.attempts_stable} on {s.identity.stable_name} at the same time."
    )
    return rollback_decision(s, Code.MOSTLY_FAILING, said, judged)


def burns(s: Snapshot, judged: Judged) -> str:
    """That stable is over its objective, in words."""
    return (
        f"{judged.guard.words} of {s.identity.stable_name} were over {share_text(judged.limit)} in the last minute too"
    )


def _relative(s: Snapshot) -> Decision | None:
    """The first guard on which the candidate is proven worse than stable, and is to blame; else the first that is excused."""
    if not s.identity.has_stable:
        return None
    found = [
        confounders.excuse(s, judged) or rollback_decision(s, Code.WORSE_THAN_STABLE, _worse(s, judged), judged)
        for judged in s.acting
        if judged.log_e_worse >= s.policy.bar_worse_of(judged.guard)
    ]
    return _most_severe(found)


def _over_objective(s: Snapshot) -> Decision | None:
    found = [
        over
        for judged in s.acting
        if judged.log_e_over >= s.policy.bar_worse_of(judged.guard) and (over := _over(s, judged))
    ]
    return _most_severe(found)


def _over(s: Snapshot, judged: Judged) -> Decision | None:
    """The candidate is over the objective. It is blamed only where stable, at the same time, is not over it too."""
    if s.identity.has_stable and judged.stable < LEAST_STABLE_ATTEMPTS:
        return None
    if is_fix(s, judged):
        return None
    over = f"at {share_text(judged.rate_candidate)} on {s.identity.candidate_name}, over {share_text(judged.limit)}"
    if judged.is_stable_over:
        return shared_incident(s, f"{judged.guard.words} are {over}, and {burns(s, judged)}", judged)
    if s.identity.has_stable and not s.desired.is_promoting and judged.log_e_worse < BLAME_LOG_E:
        said = f"{judged.guard.words} are {over}, and {s.identity.stable_name} does not clearly fare better at the same time"
        return shared_incident(s, said, judged)
    bad = judged.bad_candidate if judged.own_candidate is None else round(judged.own_candidate)
    said = (
        f"{capital(judged.guard.words)} of {s.identity.candidate_name} are at {share_text(judged.rate_candidate)} "
        f"({bad} of {judged.candidate} attempts), proven over the objective's {share_text(judged.limit)}."
    )
    return confounders.excuse(s, judged) or rollback_decision(s, Code.OBJECTIVE_BREACHED, said, judged)


def is_fix(s: Snapshot, judged: Judged) -> bool:
    """Whether the candidate is proven better than a stable release that is over the objective: what helps is not held up."""
    return s.identity.has_stable and judged.rate_stable > judged.limit and judged.log_e_better >= s.policy.bar_fine


def _spent(s: Snapshot) -> Decision | None:
    """The blast radius: bad attempts beyond what the policy tolerates beside stable, over the whole rollout."""
    if s.policy.budget_bad is None or not s.identity.has_stable:
        return None
    refused = _refused(s)
    if refused >= s.policy.budget_bad:
        said = (
            f"{s.identity.candidate_name} had no room for {s.evidence.shed_candidate} of {s.evidence.routed_candidate} requests in "
            f"this step, {s.identity.stable_name} for {s.evidence.shed_stable} of {s.evidence.routed_stable}: "
            f"surely over the budget of {s.policy.budget_bad}."
        )
        return rollback_decision(s, Code.BUDGET_SPENT, said)
    for judged in s.acting:
        if not judged.guard.kind.spends:
            continue
        excess, variance = s.evidence.harm.get(judged.guard.name, (0.0, 0.0))
        sure = excess - BUDGET_SIGMAS * math.sqrt(max(0.0, judged.phi * variance))
        if sure < s.policy.budget_bad:
            continue
        said = (
            f"{s.identity.candidate_name} has cost {excess:.0f} {judged.guard.words} more than the policy tolerates "
            f"beside {s.identity.stable_name}, surely over the budget of {s.policy.budget_bad}."
        )
        return rollback_decision(s, Code.BUDGET_SPENT, said, judged)  # whoever is to blame: users have paid enough
    return None


def _refused(s: Snapshot) -> float:
    """For how many more of this step's requests the candidate surely had no room than stable would have had, whoever answered them."""
    if not s.evidence.routed_stable or not s.evidence.shed_candidate:
        return 0.0
    usual = s.evidence.routed_candidate * s.evidence.shed_stable / s.evidence.routed_stable
    return s.evidence.shed_candidate - usual - BUDGET_SIGMAS * math.sqrt(s.evidence.shed_candidate + usual)


def _most_severe(found: list[Decision]) -> Decision | None:
    """What rolls back first, then what takes the traffic away for a while, what pauses, and what only holds."""
    order = {Action.ROLL_BACK: 0, Action.WITHDRAW: 1, Action.PAUSE: 2}
    return min(found, key=lambda one: order.get(one.action, 3), default=None)


def rollback_decision(s: Snapshot, code: Code, why: str, judged: Judged | None = None) -> Decision:
    """All traffic back to stable; a pause where the guard is not critical, or where there is no stable to go back to."""
    facts = facts_of(s, judged) | {"breach": code.value}
    stop = Action.HOLD if s.desired.state is RolloutState.PAUSED else Action.PAUSE
    if not s.identity.has_stable and not s.observed.displaced_servers:
        said = f"{why} {_why_no_target(s)}: it keeps its traffic, and a person must act."
        return Decision(stop, Code.NO_ROLLBACK_TARGET, said, facts)
    if s.is_stable_gone and code is not Code.DIGEST_MISMATCH:  # unsealed contents serve no user
        said = f"{why} {s.identity.stable_name}, the rollback target, has no serving server: nothing is taken back. {way_on(s)}"
        return Decision(Action.HOLD, Code.NO_ROLLBACK_TARGET, said, facts | {"stable_gone": True})
    if judged is not None and not judged.guard.is_critical:
        said = f"{why} The guard is not critical: staying at {weight_text(s.desired.weight_bp)} until a person decides."
        return Decision(stop, code, said, facts)
    if not s.identity.has_stable:
        said = f"{why} Rolling back to {s.identity.displaced_name}, which answers again."
        return Decision(Action.ROLL_BACK, code, said, facts)
    if _is_looked_at_again(s, code, judged):
        second = s.policy.second_look
        said = (
            f"{why} Traffic taken away at {weight_text(s.desired.weight_bp)}; {s.identity.candidate_name} begins again after "
            f"{second.after_s:g} s. Look {s.desired.look} of {second.looks}."
        )
        return Decision(Action.WITHDRAW, code, said, facts)
    return Decision(Action.ROLL_BACK, code, f"{why} Rolling back to {s.identity.stable_name}.", facts)


def _is_looked_at_again(s: Snapshot, code: Code, judged: Judged | None) -> bool:
    """Whether the policy gives the candidate another look in place of the conviction. Wrong answers are no incident."""
    is_users = judged is None or judged.guard.source is not Source.PROBER
    return code in _CROSSINGS and is_users and s.desired.look < s.policy.second_look.looks


def _why_no_target(s: Snapshot) -> str:
    if s.identity.displaced_name:
        return f"{s.identity.displaced_name}, the release before, has no serving server"
    return "There is no earlier release to go back to"


def shared_incident(s: Snapshot, what: str, judged: Judged | None = None) -> Decision:
    """A hold: stable suffers too, so the release is not blamed."""
    said = f"Holding at {weight_text(s.desired.weight_bp)}: {what}, so it is not the release that is to blame."
    return hold(s, Code.BOTH_ARMS_BAD, said, judged)


def _worse(s: Snapshot, judged: Judged) -> str:
    """The counter and the counts that convinced: since the candidate last looked no worse than tolerated."""
    point, counts = judged.convinced or (judged.guard.name, judged.window)
    bad, attempts, bad_stable, stable = map(round, counts)
    return (
        f"{capital(judged.guard.words_at(point))} of {s.identity.candidate_name} are at {share_text(bad / max(1, attempts))} "
        f"({bad} of {attempts} attempts) against {share_text(bad_stable / max(1, stable))} ({bad_stable} of {stable}) on "
        f"{s.identity.stable_name} at the same time: worse beyond doubt."
    )
