"""Emptying a node, or one server of it: what nothing needs stops, what serves users is started elsewhere first, the rest waits.

Asking marks the deployments; their node's agent comes back to them at each heartbeat (`continue_draining`) until they are gone. So a
drain outlives whoever asked for it, and goes on when what held it up has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts.core.access import Actor, Verb, require
from ledger.actions import append_event
from ledger.core.plans import require_read
from serving.actions.nodes import cordon_node, locked_node
from serving.actions.placing import place_replica
from serving.actions.routes import lock_routes
from serving.core.draining import Fate
from serving.core.lifecycle import DeploymentState
from serving.models import Deployment, Node
from serving.queries.deployments import live_deployments
from serving.queries.draining import DrainStep, deployment_on, deployments_on, digest_of_drain, drain_plan

#: Deployments of whose fate the event tells.
MOST_SAID = 50


def drain_node(
    *,
    actor: Actor,
    node: Node,
    reason: str,
    is_confirmed: bool,
    plan_digest: str = "",
    expected_version: int | None = None,
) -> list[DrainStep]:
    """Cordons the node and drains every deployment of it; what becomes of each. Idempotent: asked again it is told once.

    Raises Refused, Stale; StateChanged("plan_changed") where `plan_digest` is not that of what would happen now; and
    Invalid("not_confirmed") where it touches what users get, and neither `is_confirmed` nor a plan is said.
    """
    with transaction.atomic():
        was = locked_node(actor, node, expected_version, reason)
        plan = drain_plan(deployments_on(was))
        _require_read(plan, plan_digest, is_confirmed)
        marked = _mark([step.deployment for step in plan], actor, reason)
        cordon_node(actor=actor, node=was, reason=reason)
        if marked or was.cordoned_at is None:
            _append_node(was, actor, reason, plan)
    return _carried_out(actor, plan)


def drain_one(
    *, actor: Actor, deployment: Deployment, reason: str, is_confirmed: bool, plan_digest: str = ""
) -> DrainStep:
    """The same for one deployment; its node takes new ones as before. Raises as `drain_node`, and NotFound where it is gone."""
    with transaction.atomic():
        node = locked_node(actor, deployment.node, None, reason)
        plan = drain_plan([deployment_on(node, deployment.pk)])
        _require_read(plan, plan_digest, is_confirmed)
        if _mark([deployment], actor, reason):
            _append_node(node, actor, reason, plan)
    return _carried_out(actor, plan)[0]


def continue_draining(*, actor: Actor, node: str) -> list[DrainStep]:
    """The next steps of what is being drained on the node: for its agent. Raises Refused."""
    require(actor, Verb.ADMINISTER, "")
    asked = live_deployments().filter(node=node, drain_asked_at__isnull=False, is_wanted=True).order_by("pk")
    return _carried_out(actor, drain_plan(asked))


def _require_read(plan: Sequence[DrainStep], digest: str, is_confirmed: bool) -> None:
    is_confirmed = is_confirmed or not any(step.serves_users for step in plan)
    require_read([step.says for step in plan], digest_of_drain(plan), digest, is_confirmed=is_confirmed)


def _mark(deployments: Sequence[Deployment], actor: Actor, reason: str) -> int:
    """How many of them were not being drained already."""
    said = reason.strip() or f"drained by {actor.name}"
    unmarked = Deployment.objects.filter(pk__in=[one.pk for one in deployments], drain_asked_at=None)
    return unmarked.update(drain_asked_at=timezone.now(), drain_reason=said)


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


def _append_node(node: Node, actor: Actor, reason: str, plan: Sequence[DrainStep]) -> None:
    facts = {"plan": [step.says for step in plan][:MOST_SAID]}
    append_event(
        verb="node.drained", subject_type="node", subject_id=node.name, actor=actor, reason=reason.strip(), facts=facts
    )


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
