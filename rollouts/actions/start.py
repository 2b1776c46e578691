"""Asking for a rollout: everything that can be refused is refused here, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts.core.access import Actor, Verb, may, require
from ledger.actions import append_event
from ledger.core.errors import Invalid, Refused, StateChanged
from ledger.queries import clock
from registry.core.kinds import kind_of
from registry.models import Release
from registry.queries import manifest_of, require_runnable
from rollouts.actions.preconditions import refuse_frozen
from rollouts.actions.transitions import move, named, record
from rollouts.actions.weaker_policies import refuse_weaker, weakened_by
from rollouts.core.approvals import START
from rollouts.core.lifecycle import WITHOUT_TRAFFIC, RolloutState
from rollouts.core.policy import Policy
from rollouts.core.policy_schema import parse_policy, watching_refusals
from rollouts.models import Rollout
from rollouts.queries.beside import Ongoing, beside
from rollouts.queries.obstacles import does_not_hold, report_problem
from rollouts.queries.rolled_back import last_tried, promoted_by
from rollouts.queries.target import gone_beside, is_stable_gone
from rollouts.queries.undo_window import serves
from serving.environments.actions.locks import lock_open, refuse_retired
from serving.models import Environment, Route
from serving.targets.port import Forecast
from serving.traffic.queries.routes import route_of
from validators.models import Report
from validators.queries import closest_report
from validators.queries.expiry import expired_of
from validators.queries.model_policy import policy_of as gate_policy_of


@dataclass(frozen=True)
class Admitted:
    """Basis of a rollout: its policy, and the report that admits its candidate."""

    policy: Policy
    report: Report | None


def start_rollout(
    *,
    actor: Actor,
    candidate: Release,
    environment: Environment,
    policy: Mapping[str, Any] | None = None,
    reason: str = "",
    again: bool = False,
) -> Rollout:
    """The rollout of `find_or_start`."""
    return find_or_start(
        actor=actor, candidate=candidate, environment=environment, policy=policy, reason=reason, again=again
    )[0]


def find_or_start(
    *,
    actor: Actor,
    candidate: Release,
    environment: Environment,
    policy: Mapping[str, Any] | None = None,
    reason: str = "",
    again: bool = False,
) -> tuple[Rollout, bool]:
    """(the rollout of the candidate under this policy, whether it was started now): else the active one.

    A new rollout prepares, or awaits an approval if the policy or the environment asks for one. `policy` replaces the
    model's own. The rollback target and the report are pinned now. `again`: also if the release was taken back here before.

    Raises:
        Refused: the actor may not, or not under a policy of their own; no passed report for exactly this manifest and
            gate policy; unwaived code; a freeze window.
        Invalid: the policy cannot be read, or the environment has no gateway.
        StateChanged: not sealed, already stable there, the environment is retired, another rollout is active, or this
            release was rolled back, reverted or rejected before (facts["rollout"] names it).
    """
    require(actor, Verb.START_ROLLOUT, candidate.model.team.slug, candidate.model.slug)
    refuse_own_policy(actor, candidate, policy)
    ongoing = beside(candidate.model, environment).ongoing
    if (found := _same(ongoing, candidate, environment, policy)) is not None:
        return found, False
    if ongoing is None:  # first: a new rollout's needs, such as a report, do not matter for an earlier end
        if not again:  # first: a release of an ended rollout may still serve
            refuse_tried_before(candidate, environment)
        stable_beside(candidate, environment)
    admitted = admit(actor, candidate, environment, policy)
    refuse_beside_another(candidate, environment)
    try:
        with transaction.atomic():
            lock_open(environment)  # so that the rollback target is the stable release of this very moment
            return create(actor, candidate, environment, admitted, reason), True
    except IntegrityError as error:
        if "rollout_one_active" not in str(error):
            raise
        ongoing = beside(candidate.model, environment).ongoing
        if (found := _same(ongoing, candidate, environment, policy)) is not None:
            return found, False
        refuse_beside(ongoing, environment)
        raise


def _same(
    ongoing: Ongoing | None, candidate: Release, environment: Environment, policy: Mapping[str, Any] | None
) -> Rollout | None:
    """The active rollout, if it is of this release under this policy. Raises StateChanged if only its policy is another."""
    if ongoing is None or ongoing.candidate != candidate.number:
        return None
    found = Rollout.objects.select_related(
        "model__team", "environment", "candidate", "stable", "report", "requested_by"
    )
    rollout = found.get(pk=ongoing.pk)
    if rollout.policy_digest == policy_for(candidate, environment, policy).digest:
        return rollout
    raise StateChanged(
        "rollout_active",
        f"Rollout {ongoing.pk} of {candidate.name} is {_worded(ongoing.state)} in {environment.slug} under another policy. "
        f"Follow it with `sluicegate rollout watch {ongoing.pk}`, or end it and start again.",
        rollout=ongoing.pk,
        candidate=candidate.name,
        state=ongoing.state.value,
    )


def refuse_tried_before(candidate: Release, environment: Environment) -> None:
    """Raises StateChanged("tried_before") if the release's last rollout here was rolled back, reverted or rejected.

    A cancelled or superseded rollout had no traffic, so it is no evidence on the release.
    """
    last = last_tried(candidate, environment)
    if last is None or last.state == RolloutState.PROMOTED:
        return
    end = "was ended" if last.outcome == "ended" else f"ended {_worded(last.outcome)}"
    way_on = "Push a mended release, or start this one again with `again` (on the command line: --again)."
    if serves(last):
        way_on = "It serves still. Push a mended release, and start that."
    raise StateChanged(
        "tried_before",
        f"Rollout {last.pk} of {candidate.name} in {environment.slug} {end}: {last.reason} "
        f"{candidate.name} is not rolled out again by itself. {way_on}",
        rollout=last.pk,
        candidate=candidate.name,
        state=last.state,
        outcome=last.outcome,
        reason=last.reason,
    )


def admit(actor: Actor, candidate: Release, environment: Environment, policy: Mapping[str, Any] | None) -> Admitted:
    """The rollout's basis. Raises like `start_rollout`, except for the rollout beside it."""
    refuse_own_policy(actor, candidate, policy)
    check_release(candidate, environment)
    plan = policy_for(candidate, environment, policy)
    refuse_weaker(actor, candidate, weakened_by(candidate, environment, plan))
    refuse_frozen_start(actor, candidate, environment, plan)
    return Admitted(plan, report_for(candidate, environment))


def refuse_frozen_start(actor: Actor, candidate: Release, environment: Environment, plan: Policy) -> None:
    """As `refuse_frozen`, but a release manager may prepare what takes the place of a stable release without a server."""
    try:
        refuse_frozen(plan, "Start the rollout")
    except Refused as refused:
        gone, model = gone_beside(candidate, environment), candidate.model
        if gone is None:
            raise
        if not may(actor, Verb.PROMOTE_NOW, model.team.slug, model.slug):
            way = f"{gone.name} has no serving server, so a release manager may start it now."
            raise Refused("frozen", f"{refused.message} {way}", **refused.facts) from None


def policy_for(candidate: Release, environment: Environment, policy: Mapping[str, Any] | None) -> Policy:
    """The policy in full: the one given or the model's own, with the approval that the environment asks for at the start, and with a
    guard on callers' mistakes unless it states one.

    Raises Invalid.
    """
    model = candidate.model
    plan = watching_refusals(parse_policy(model.rollout_policy if policy is None else policy, model.objectives))
    if environment.needs_approval and not plan.approvals.get(START):
        plan = parse_policy({**plan.document, "approvals": {**plan.approvals, START: 1}})
    return plan


def create(
    actor: Actor,
    candidate: Release,
    environment: Environment,
    admitted: Admitted,
    reason: str,
    *,
    supersedes: Rollout | None = None,
) -> Rollout:
    """The new row, in its first state. In a transaction that holds the environment's routes."""
    plan, report = admitted.policy, admitted.report
    stable = stable_beside(candidate, environment)
    wanted = plan.approvals.get(START, 0)
    state = RolloutState.AWAITING_APPROVAL if wanted else RolloutState.PREPARING
    rollout = Rollout.objects.create(
        state=state,
        model=candidate.model,
        environment=environment,
        candidate=candidate,
        stable=stable,
        report=report,
        policy=plan.document,
        policy_digest=plan.digest,
        requested_by_id=actor.user_id,
        started_at=None if wanted else clock.now(),
        supersedes=supersedes,
    )
    over = f"over {stable.name}" if stable else "as the first release there: absolute objectives only"
    said = reason.strip() or f"{actor.name} asked for {candidate.name} in {environment.slug}, {over}."
    pinned = {"manifest": candidate.digest, "report": report.digest if report else None, "policy": plan.digest}
    append_event(
        verb="rollout.requested",
        subject_type="rollout",
        subject_id=rollout.pk,
        actor=actor,
        to_state=state,
        reason=said,
        facts=named(rollout) | pinned,
    )
    record(rollout, actor=actor, action="request", reason=said, facts=pinned)
    if wanted:
        people = "the approval of someone" if wanted == 1 else f"{wanted} approvals, each of someone"
        wait = f"{candidate.name} waits for {people} other than its author and {actor.name}."
        return move(rollout, state, actor=actor, reason=wait)
    close_undo_windows(rollout)
    return move(rollout, state, actor=actor, reason=f"Getting {candidate.name} loaded and warm.")


def close_undo_windows(rollout: Rollout) -> None:
    """For a rollout that begins to prepare: from now on the stable release is the one to go back to.

    What an earlier rollout kept warm may go, but for the candidate itself, where that was it: it is wanted again. While stable has no
    server it stays: one step still goes back to it.
    """
    if is_stable_gone(rollout):
        return
    now = timezone.now()
    kept = Rollout.objects.filter(
        environment=rollout.environment_id, model=rollout.model_id, state=RolloutState.PROMOTED, undo_until__gt=now
    )
    kept.filter(stable=rollout.candidate_id).update(undo_until=None)
    kept.update(undo_until=now)


def refuse_own_policy(actor: Actor, candidate: Release, policy: Mapping[str, Any] | None) -> None:
    """Requires responsibility for the model's policy: a custom policy could open the gate at once."""
    model = candidate.model
    if policy is None or any(
        may(actor, verb, model.team.slug, model.slug) for verb in (Verb.EDIT_MODEL, Verb.APPROVE_ROLLOUT)
    ):
        return
    raise Refused(
        "policy_not_yours",
        f"{actor.name} may start rollouts of {model.slug} only under the model's own policy. Leave `policy` out, or ask the "
        "model's team or a release manager to start this rollout.",
        field="policy",
    )


def stable_beside(candidate: Release, environment: Environment, route: Route | None = None) -> Release | None:
    """The release that serves now, the rollback target. Raises StateChanged when it is the candidate itself.

    It is the last one that was fully promoted: a route names no other as stable. `route`: the model's one there, where it is known.
    """
    route = route or route_of(candidate.model, environment)
    if route is not None and route.stable_id == candidate.pk:
        raise StateChanged(
            "already_stable",
            f"{candidate.name} already serves all of {candidate.model.slug} in {environment.slug}; there is nothing to move.",
            rollout=promoted_by(candidate, environment),
        )
    stable = route.stable if route else None
    if stable is not None:
        refuse_other_calls(candidate, stable)
    return stable


def refuse_other_calls(candidate: Release, stable: Release) -> None:
    """Raises Invalid("other_calls") if callers of stable would have to call the candidate by other paths."""
    ours, theirs = (kind_of(manifest_of(one)) for one in (candidate, stable))
    if (ours.calls, ours.words) != (theirs.calls, theirs.words):
        raise Invalid(
            "other_calls",
            f"{candidate.name} runs on {ours.name}, and {stable.name} of {candidate.model.slug} on {theirs.name}. Their callers use "
            "other paths or get other errors, so no rollout can move traffic between them. Create another model for it.",
        )


def check_release(candidate: Release, environment: Environment) -> None:
    """Raises Invalid, StateChanged or Refused where this release cannot take this environment's traffic at all."""
    refuse_retired(environment)
    if not environment.is_routed:
        raise Invalid(
            "environment_not_routed",
            f"{environment.slug} has no gateway, so there is no traffic to move. Choose a routed environment.",
        )
    require_runnable(candidate)


def report_for(candidate: Release, environment: Environment) -> Report | None:
    """The newest report of exactly these contents under the gate policy of today. Raises as `admitted_by` does."""
    policy_digest = gate_policy_digest(candidate)
    report, is_present = closest_report(candidate, policy_digest)
    return admitted_by(report if is_present else None, candidate, environment, policy_digest)


def gate_policy_digest(candidate: Release) -> str:
    """Of the model's gate policy of today."""
    return gate_policy_of(candidate.model).digest


def admitted_by(
    report: Report | None,
    candidate: Release,
    environment: Environment,
    policy_digest: str,
    forecast: Forecast | None = None,
) -> Report | None:
    """The report, where it admits the candidate or the environment asks for none. `forecast` as `expired_of` takes it.

    Raises Refused where it does not admit, or where what it measured does not hold here: facts["lines"] tells what.
    """
    problem = report_problem(candidate, environment, report)
    if problem:
        code = "report_missing" if report is None else "report_not_passed"
        raise Refused(code, problem, release=candidate.name, digest=candidate.digest, policy_digest=policy_digest)
    if report is None or not environment.needs_passed_report:
        return report
    if lines := expired_of(report, environment, release=candidate, forecast=forecast):
        told = [line.as_json() for line in lines]
        raise Refused(
            "expired_report", does_not_hold(candidate, environment, lines), release=candidate.name, lines=told
        )
    return report


def refuse_beside_another(candidate: Release, environment: Environment) -> None:
    """Raises StateChanged("rollout_active") beside a rollout that has not ended, and says what may be done about it."""
    refuse_beside(beside(candidate.model, environment).ongoing, environment)


def refuse_beside(other: Ongoing | None, environment: Environment) -> None:
    """The same for a known rollout."""
    if other is None:
        return
    name = f"r{other.candidate}"
    raise StateChanged(
        "rollout_active",
        f"Rollout {other.pk} of {name} is {_worded(other.state)} in {environment.slug}. Let it end, or {_end_of(other)}.",
        rollout=other.pk,
        candidate=name,
        state=other.state.value,
    )


def _end_of(other: Ongoing) -> str:
    return "let this one supersede it" if other.state in WITHOUT_TRAFFIC else "abort it first"


def _worded(state: str) -> str:
    return state.replace("_", " ")
