"""Draining replicas whose slot was given away: each stops as soon as nothing needs it.

Its row holds that it is drained (`drain_asked_at`), and the agent takes the next step at each heartbeat until it is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction
from django.db.models import F

from accounts.core.access import Actor, Verb, require
from ledger.actions import append_event
from serving.actions.placing import place_replica
from serving.actions.routes import lock_routes
from serving.core.draining import Fate
from serving.core.lifecycle import DeploymentState
from serving.models import Deployment
from serving.queries.deployments import live_deployments
from serving.queries.draining import DrainStep, drain_plan


def continue_draining(*, actor: Actor, node: str) -> list[DrainStep]:
    """The next steps of what is being drained on the node: for its agent. Raises Refused."""
    require(actor, Verb.ADMINISTER, "")
    asked = live_deployments().filter(node=node, drain_asked_at__isnull=False, is_wanted=True).order_by("pk")
    return _carried_out(actor, drain_plan(asked))


def _carried_out(actor: Actor, plan: Sequence[DrainStep]) -> list[DrainStep]:
    return [_carry_out(actor, step) for step in plan]


def _carry_out(actor: Actor, step: DrainStep) -> DrainStep:
    """The step as it was taken. It is looked at again under the routes' lock: a rollout may have begun meanwhile."""
    if step.fate not in (Fate.STOPS, Fate.MOVES):
        return step
    with transaction.atomic():
        lock_routes(step.deployment.environment)
        now = next(iter(drain_plan(live_deployments().filter(pk=step.deployment.pk))), None)
        if now is None:
            return step
        reason = now.deployment.drain_reason or f"drained by {actor.name}"
        if now.fate is Fate.STOPS:
            _release(actor, now.deployment, reason)
        elif now.fate is Fate.MOVES and now.target:
            one = now.deployment
            place_replica(
                actor=actor,
                release=one.release,
                environment=one.environment,
                reason=f"{one.node_id} is being drained: {reason}",
                slot=one.slot,
                but=[one.node_id],
            )
        return now


def _release(actor: Actor, deployment: Deployment, reason: str) -> None:
    rows = Deployment.objects.filter(pk=deployment.pk, is_wanted=True).exclude(state=DeploymentState.GONE)
    if rows.update(is_wanted=False, reason=reason, version=F("version") + 1):
        deployment.refresh_from_db(fields=["state"])  # its agent may have moved it before the row was locked
        _append(deployment, "deployment.drained", actor, reason)


def _append(deployment: Deployment, verb: str, actor: Actor, reason: str) -> None:
    release = deployment.release
    append_event(
        verb=verb, subject_type="deployment", subject_id=str(deployment.pk), actor=actor, reason=reason,
        from_state=deployment.state if verb == "deployment.drained" else "", to_state=deployment.state,
        facts={
            "model": release.model.slug, "release": release.name, "digest": release.digest,
            "environment": deployment.environment.slug, "node": deployment.node_id,
        },
    )  # fmt: skip
