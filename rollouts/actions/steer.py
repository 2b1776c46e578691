"""People's verbs on a rollout. Each is checked: permission, version, state. Shutting is easier than opening."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor, Verb, require
from accounts.core.errors import Invalid, NotFound, Refused, Stale, StateChanged
from ledger.actions import append_event
from registry.models import ServedModel
from rollouts.actions.moving import move, record, shut
from rollouts.core.lifecycle import ACTIVE, LIVE, RolloutState
from rollouts.models import Approval, Rollout
from serving.actions import drain_deployment
from serving.models import Environment, Route
from serving.queries import deployment_of, ready_server
from serving.routing import hold_routes, set_route

S = RolloutState


@transaction.atomic
def approve(*, actor: Actor, rollout: Rollout, expected_version: int, reason: str = "") -> Rollout:
    """A person's yes to exactly the pinned manifest, report and policy; the rollout goes on to prepare.

    Raises Refused("own_release"): neither the release's author nor who asked for the rollout may approve it.
    """
    rollout = _checked(actor, Verb.APPROVE_ROLLOUT, rollout, expected_version, {S.AWAITING_APPROVAL}, "approve")
    if actor.user_id is None:
        raise Refused("no_person", "An approval takes a person; sign in as one.")
    if actor.user_id in {rollout.candidate.author_id, rollout.requested_by_id}:
        raise Refused(
            "own_release",
            f"{actor.name} made {rollout.candidate.name} or asked for this rollout; someone else must approve it.",
        )
    report = rollout.report.digest if rollout.report else ""
    Approval.objects.create(
        rollout=rollout,
        approver_id=actor.user_id,
        manifest_digest=rollout.candidate.digest or "",
        report_digest=report,
        policy_digest=rollout.policy_digest,
        step_index=rollout.step_index,
        comment=reason,
    )
    pinned = {"manifest": rollout.candidate.digest, "report": report, "policy": rollout.policy_digest}
    said = (
        f"Approved by {actor.name}{f': {reason}' if reason else ''}. Getting {rollout.candidate.name} loaded and warm."
    )
    move(rollout, S.PREPARING, actor=actor, reason=said, verb="rollout.approved", facts=pinned)
    record(rollout, actor=actor, action="approve", reason=said, facts=pinned)
    return rollout


@transaction.atomic
def reject(*, actor: Actor, rollout: Rollout, expected_version: int, reason: str) -> Rollout:
    """A person's no. Final; no traffic ever moved."""
    rollout = _checked(
        actor, Verb.APPROVE_ROLLOUT, rollout, expected_version, {S.REQUESTED, S.AWAITING_APPROVAL}, "reject"
    )
    return _said(rollout, S.REJECTED, actor, "reject", f"Rejected by {actor.name}: {_given(reason)}")


@transaction.atomic
def pause(*, actor: Actor, rollout: Rollout, expected_version: int, reason: str) -> Rollout:
    """The weight stays, nothing advances; a breach still rolls back."""
    rollout = _checked(actor, Verb.PAUSE_ROLLOUT, rollout, expected_version, {S.SHIFTING, S.BAKING}, "pause")
    said = f"Paused by {actor.name} at {rollout.weight_bp / 100:g} %: {_given(reason)}"
    return _said(rollout, S.PAUSED, actor, "pause", said, resume_state=rollout.state)


@transaction.atomic
def resume(*, actor: Actor, rollout: Rollout, expected_version: int, reason: str) -> Rollout:
    """Back to where it was paused. The step's clock starts again; its evidence is kept."""
    rollout = _checked(actor, Verb.RESUME_ROLLOUT, rollout, expected_version, {S.PAUSED}, "resume")
    to = S(rollout.resume_state or S.SHIFTING)
    plan = rollout.plan
    stage = plan.bake if to is S.BAKING else plan.steps[min(max(rollout.step_index, 0), len(plan.steps) - 1)]
    now = timezone.now()
    clock: dict[str, Any] = (
        {"step_started_at": now, "due_at": now + timedelta(seconds=stage.deadline_s)} if rollout.step_started_at else {}
    )
    said = f"Resumed by {actor.name} at {rollout.weight_bp / 100:g} %: {_given(reason)}"
    return _said(rollout, to, actor, "resume", said, verb="rollout.resumed", resume_state="", **clock)


@transaction.atomic
def advance(*, actor: Actor, rollout: Rollout, expected_version: int, reason: str) -> Rollout:
    """To the next step, to the bake after the last one: without waiting for proof. Breach is watched as before.

    Raises StateChanged("still_baking") while baking: what promotes is evidence alone.
    """
    rollout = _checked(actor, Verb.ADVANCE_ROLLOUT, rollout, expected_version, {S.SHIFTING, S.BAKING}, "advance")
    if rollout.state == S.BAKING:
        raise StateChanged(
            "still_baking",
            "The bake is the last look before stable is let go; it ends by evidence. Wait for it, or abort.",
        )
    plan = rollout.plan
    index = rollout.step_index + 1
    is_last = index >= len(plan.steps)
    weight = plan.bake.weight_bp if is_last else plan.steps[index].weight_bp
    said = f"Advanced to {weight / 100:g} % by {actor.name} without waiting for proof: {_given(reason)}"
    if rollout.stable is not None:
        set_route(
            actor=actor,
            environment=rollout.environment,
            model=rollout.model,
            stable=rollout.stable,
            candidate=rollout.candidate,
            candidate_bp=weight,
            reason=said,
        )
    return _said(
        rollout,
        S.BAKING if is_last else S.SHIFTING,
        actor,
        "advance",
        said,
        verb="rollout.advanced",
        facts={"to_index": index},
        weight_bp=weight,
        step_index=rollout.step_index if is_last else index,
        step_started_at=None,
        due_at=None,
    )


@transaction.atomic
def cancel(*, actor: Actor, rollout: Rollout, expected_version: int, reason: str) -> Rollout:
    """Drops a rollout that has no traffic yet."""
    states = {S.REQUESTED, S.AWAITING_APPROVAL, S.PREPARING}
    rollout = _checked(actor, Verb.ABORT_ROLLOUT, rollout, expected_version, states, "cancel")
    return _cancelled(rollout, actor, reason)


@transaction.atomic
def abort(*, actor: Actor, rollout: Rollout, expected_version: int, reason: str) -> Rollout:
    """Whatever it is doing, it ends: weight 0 at once where it has traffic, cancelled where it has none."""
    states = {state for state in ACTIVE if state is not S.ROLLING_BACK}
    rollout = _checked(actor, Verb.ABORT_ROLLOUT, rollout, expected_version, states, "abort")
    return (
        _cancelled(rollout, actor, reason)
        if rollout.state not in LIVE | {S.STUCK}
        else _taken_back(rollout, actor, reason)
    )


@transaction.atomic
def roll_back(*, actor: Actor, rollout: Rollout, expected_version: int, reason: str) -> Rollout:
    """All traffic back to the pinned stable release: the route is written in this very transaction."""
    rollout = _checked(actor, Verb.ROLL_BACK, rollout, expected_version, LIVE | {S.STUCK}, "roll back")
    return _taken_back(rollout, actor, reason)


def roll_back_model(*, actor: Actor, model: ServedModel, environment: Environment, reason: str) -> Rollout:
    """Takes the model's traffic back, whatever there is to take back: the active rollout, or the last promoted one.

    Raises NotFound("no_active_rollout") where nothing is active and the release before is no longer warm.
    """
    require(actor, Verb.ROLL_BACK, model.team.slug)
    states = sorted(state.value for state in ACTIVE)
    with transaction.atomic():
        # Held, so that the engine cannot move it on between this look and the abort: who shuts needs no version.
        active = (
            Rollout.objects.select_for_update().filter(environment=environment, model=model, state__in=states).first()
        )
        if active is not None and active.state == S.ROLLING_BACK:
            return active
        if active is not None:
            return abort(actor=actor, rollout=active, expected_version=active.version, reason=reason)
        hold_routes(environment)  # what is warm now stays so until the route is written
        if Rollout.objects.filter(environment=environment, model=model, state__in=states).exists():
            raise StateChanged("rollout_active", f"A rollout of {model.slug} was started just now. Roll back again.")
        return _instantly_back(actor, model, environment, reason)


def _instantly_back(actor: Actor, model: ServedModel, environment: Environment, reason: str) -> Rollout:
    """The last promoted rollout, undone while the release before it is still warm. Holding the routes."""
    last = (
        Rollout.objects.select_related("candidate", "stable", "model__team", "environment")
        .filter(environment=environment, model=model, state=S.PROMOTED)
        .first()
    )
    route = Route.objects.filter(environment=environment, model=model).first()
    is_last = last is not None and route is not None and route.stable_id == last.candidate_id
    if last is None or last.stable is None or not is_last or ready_server(last.stable, environment) is None:
        before = (
            f" {last.stable.name}, the release before, is no longer warm: start a rollout of it."
            if last and last.stable
            else " There is nothing to take back."
        )
        raise NotFound("no_active_rollout", f"No rollout of {model.slug} is active in {environment.slug}.{before}")
    said = f"{actor.name} went back to {last.stable.name}, still warm: {_given(reason)}"
    set_route(actor=actor, environment=environment, model=model, stable=last.stable, reason=said)
    append_event(
        verb="rollout.taken_back",
        subject_type="rollout",
        subject_id=last.pk,
        actor=actor,
        reason=said,
        facts={"model": model.slug, "from": last.candidate.name, "to": last.stable.name},
    )
    record(last, actor=actor, action="roll_back", reason=said, code="instant")
    return last


def _checked(
    actor: Actor, verb: Verb, rollout: Rollout, expected_version: int, states: Collection[RolloutState], word: str
) -> Rollout:
    """The rollout, locked. Raises Refused, Stale, StateChanged, in this order."""
    found = (
        Rollout.objects.select_for_update(of=("self",))
        .select_related("model__team", "environment", "candidate", "stable", "report")
        .get(pk=rollout.pk)
    )
    require(actor, verb, found.model.team.slug)
    if found.version != expected_version:
        raise Stale(
            "stale",
            f"Rollout {found.pk} is at version {found.version}, not {expected_version}: it moved meanwhile. Read it again, then decide.",
            version=found.version,
            state=found.state,
        )
    if found.state not in states:
        able = ", ".join(sorted(state.value.replace("_", " ") for state in states))
        raise StateChanged(
            "wrong_state",
            f"Rollout {found.pk} is {found.state.replace('_', ' ')}; {word} needs it to be {able}.",
            state=found.state,
        )
    return found


def _said(
    rollout: Rollout,
    to: RolloutState,
    actor: Actor,
    action: str,
    reason: str,
    verb: str = "",
    facts: dict[str, Any] | None = None,
    **changes: Any,
) -> Rollout:
    move(rollout, to, actor=actor, reason=reason, verb=verb, **changes)
    shown = {"weight_bp": rollout.weight_bp, "step_index": rollout.step_index, **(facts or {})}
    record(rollout, actor=actor, action=action, reason=reason, facts=shown)
    return rollout


def _given(reason: str) -> str:
    text = reason.strip()
    if not text:
        raise Invalid(
            "reason_missing",
            "Say why, in one sentence: the reason is kept with the decision.",
            errors=[{"field": "reason", "message": "the reason is empty.", "fix": "Write one sentence."}],
        )
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _cancelled(rollout: Rollout, actor: Actor, reason: str) -> Rollout:
    said = f"Cancelled by {actor.name} before any traffic: {_given(reason)}"
    was_preparing = rollout.state == S.PREPARING
    hold_routes(rollout.environment)  # before the first event: whoever takes both locks takes the log's last
    _said(rollout, S.CANCELLED, actor, "cancel", said)
    deployment = deployment_of(rollout.candidate, rollout.environment) if was_preparing else None
    if deployment is not None:
        drain_deployment(actor=Actor.system("rollouts"), deployment=deployment, reason=said)
    return rollout


def _taken_back(rollout: Rollout, actor: Actor, reason: str) -> Rollout:
    target = f"Rolling back to {rollout.stable.name}" if rollout.stable else "There is no release to go back to"
    said = f"{target}, by {actor.name}: {_given(reason)}"
    shut(rollout, actor=actor, reason=said)
    changes: dict[str, Any] = {"weight_bp": 0} if rollout.stable else {}
    changes |= {} if rollout.decided_at else {"decided_at": timezone.now()}
    return _said(
        rollout,
        S.ROLLING_BACK,
        actor,
        "roll_back",
        said,
        verb="rollout.aborted",
        step_started_at=None,
        due_at=None,
        **changes,
    )
