"""How many replicas of a release there are to be, and the controller that brings them about.

What is wanted stands in rows. Any node's agent may take the next steps, at its heartbeat: they are taken under one lock, from what is
there, so it does not matter whose agent does, nor whether one dies at it (`serving.core.replicas`).
"""

from __future__ import annotations

from django.db import connection, transaction
from django.db.models import F

from accounts.core.access import Actor, Verb, require, require_version
from ledger.actions import append_event
from ledger.core.errors import DomainError, Invalid, StateChanged
from registry.models import Release
from serving.actions.deployments import drain_deployment, hold_servers, mark_serving
from serving.actions.draining import continue_draining
from serving.actions.placing import hold_rooms, place_replica, why_nowhere
from serving.actions.replacing import give_slot_away, replace_replica, sentence
from serving.actions.routes import lock_open, lock_routes
from serving.core.lifecycle import DeploymentState
from serving.core.replicas import MOST_REPLICAS, ReplicaStep, What
from serving.core.sleep_lifecycle import SleepState
from serving.models import Deployment, Environment, Route, Scale, Server, Sleep
from serving.queries.deployments import answering_servers, deployments_in
from serving.queries.placement import fleet_now, place_for
from serving.queries.replicas import ReplicaPlan, declared_replicas, failed_on, lost_nodes, replica_plans

#: One agent at a time places; the others go on with what else they have to do. Any number that nobody else uses.
_CONTROLLER_LOCK = 7_316_003


@transaction.atomic
def scale_release(
    *,
    actor: Actor,
    release: Release,
    environment: Environment,
    replicas: int,
    reason: str,
    expected_version: int | None = None,
) -> Scale:
    """How many replicas the release is to have there from now on. Saying what is so already changes nothing.

    Raises Refused, Stale, StateChanged (it has no server there; the environment is retired), and Invalid: it is no number of
    replicas, more than the envelope declares, or the environment has no gateway.
    """
    require(actor, Verb.SCALE_RELEASE, release.model.team.slug, release.model.slug)
    _check(release, environment, replicas)
    lock_open(environment)
    if not replica_plans(environment, release):
        _refuse_asleep(release, environment)
        raise StateChanged(
            "not_deployed",
            f"{release.model.slug} {release.name} has no server in {environment.slug}. A rollout brings it there: "
            f"sluicegate rollout start {release.model.slug}/{release.name}",
        )
    found = Scale.objects.filter(release=release, environment=environment).first()
    require_version(found.version if found else 0, expected_version, f"The scale of {release.name}")
    if found is not None and found.replicas == replicas:
        return found
    said = {"replicas": replicas, "reason": reason, "changed_by": actor.name}
    scale, is_new = Scale.objects.update_or_create(release=release, environment=environment, defaults=said)
    if not is_new:
        Scale.objects.filter(pk=scale.pk).update(version=F("version") + 1)
        scale.refresh_from_db()
    append_event(
        verb="deployment.scaled",
        subject_type="deployment",
        subject_id=f"{release.model.slug}/{release.name}@{environment.slug}",
        actor=actor,
        reason=reason,
        facts={
            "model": release.model.slug,
            "release": release.name,
            "digest": release.digest,
            "environment": environment.slug,
            "replicas": replicas,
            "before": found.replicas if found else None,
        },
    )
    return scale


def _refuse_asleep(release: Release, environment: Environment) -> None:
    sleeps = Sleep.objects.filter(model=release.model, environment=environment).exclude(state=SleepState.AWAKE)
    if sleeps.exists() and Route.objects.filter(stable=release, environment=environment).exists():
        raise StateChanged(
            "model_asleep",
            f"{release.model.slug} sleeps in {environment.slug}, and has no server there. Wake it, and ask again once it answers: "
            f"sluicegate api POST /models/{release.model.slug}/sleep/end environment={environment.slug}",
        )


def _check(release: Release, environment: Environment, replicas: int) -> None:
    if not environment.is_routed:
        raise Invalid("not_scaled", f"{environment.slug} has no gateway: what gates measure there is one server.")
    most = min(declared_replicas([release.pk])[release.pk].most or MOST_REPLICAS, MOST_REPLICAS)
    if not 1 <= replicas <= most:
        why = "its envelope declares no more" if most < MOST_REPLICAS else "more are never placed"
        raise Invalid(
            "replicas_out_of_range",
            f"{replicas} replicas cannot be had, but between 1 and {most}: {why}. To have none of it for a while, let its model sleep: "
            f"sluicegate api POST /models/{release.model.slug}/sleep/begin environment={environment.slug}",
            least=1,
            most=most,
        )


def why_not_placed(release: Release, environment: Environment) -> str:
    """Why replicas of the release that are wanted there do not come, as a sentence; empty where they are only on their way."""
    plans = replica_plans(environment, release)
    if any(step.what is What.PLACE for plan in plans for step in plan.steps):
        choice = place_for(release, environment, fleet_now(), but=lost_nodes())
        return "" if choice.node else why_nowhere(release, choice).message
    failed = deployments_in(release, environment).filter(is_wanted=True, state=DeploymentState.FAILED).first()
    return "" if failed is None else f"The one on node {failed.node_id} failed: {failed.reason}"


def continue_placing(*, actor: Actor) -> list[str]:
    """Takes what steps there are to be taken now, for every release everywhere; what could not be done, as sentences.

    For an agent's heartbeat. Nothing where another agent is at it. Raises Refused.
    """
    require(actor, Verb.ADMINISTER, "")
    _leave_lost_nodes(actor)
    due = {plan.environment.pk: plan.environment for plan in replica_plans() if _is_due(plan)}
    return [trouble for environment in due.values() for trouble in _bring_about(actor, environment)]


def _is_due(plan: ReplicaPlan) -> bool:
    """Whether there is a step to take: the routes are not to be locked for a failed replica that nothing can be done for."""
    if all(step.what is What.MOVE for step in plan.steps):
        return bool(plan.steps) and bool(_elsewhere(plan.release, plan.environment))
    return True


def _elsewhere(release: Release, environment: Environment) -> str:
    """The node that would take a replica of the release and has not lately failed to run one; empty where there is none."""
    return place_for(release, environment, fleet_now(), but=failed_on(release, environment)).node


@transaction.atomic
def _bring_about(actor: Actor, environment: Environment) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_CONTROLLER_LOCK])
        if not cursor.fetchone()[0]:
            return []
    lock_routes(environment)
    hold_rooms()  # before the first event: of several steps one tells of its own, and the next places
    # Their deployments, too: an agent that has moved one tells of it next. So what is to be done is what there is then.
    held = {plan.release for plan in replica_plans(environment)}
    lock_routes(environment, *held)
    troubles, plans = [], [plan for plan in replica_plans(environment) if plan.release in held]
    for plan in plans:
        for step in plan.steps:
            try:
                with transaction.atomic():
                    _take(actor, plan, step)
            except DomainError as error:
                troubles.append(f"{plan.release.model.slug} {plan.release.name} in {environment.slug}: {error.message}")
    return troubles


def _take(actor: Actor, plan: ReplicaPlan, step: ReplicaStep) -> None:
    if step.what is What.PLACE:
        reason, but = f"{plan.wanted} replicas are wanted.", set()
        if _elsewhere(plan.release, plan.environment):  # else one that failed is better than none
            but = failed_on(plan.release, plan.environment)
        release, environment = plan.release, plan.environment
        place_replica(actor=actor, release=release, environment=environment, reason=reason, slot=step.slot, but=but)
        return
    deployment = Deployment.objects.select_related("release__model__team", "environment").get(pk=step.key)
    if step.what is What.RENEW:
        replace_replica(actor=actor, deployment=deployment, reason=sentence(step.why))
        return
    if step.what is What.MOVE:
        if _elsewhere(plan.release, plan.environment):  # else it stays as it is
            but = failed_on(plan.release, plan.environment)
            give_slot_away(actor, deployment, sentence(step.why), but=but)
        return
    drain_deployment(actor=actor, deployment=deployment, reason=sentence(step.why), is_spare=True)


def _leave_lost_nodes(actor: Actor) -> None:
    """Takes the traffic of a lost node's servers away if others answer, and continues the drains of lost nodes. An agent that is back
    reads from its rows which servers to drop."""
    lost = lost_nodes()
    for environment in {environment for _, environment in _to_leave(lost)}:
        _take_traffic_away(actor, environment)
    for node in sorted(lost):
        continue_draining(actor=actor, node=node)


@transaction.atomic
def _take_traffic_away(actor: Actor, environment: Environment) -> None:
    """Under the routes' lock: another agent may just be letting go of the others, as one too many, from before the node was lost."""
    lock_routes(environment)
    leaving = [server for server, where in _to_leave(lost_nodes()) if where == environment]
    hold_servers(leaving)
    for server in leaving:
        why = f"Nothing has been heard of its node {server.deployment.node_id} for too long, and others answer."
        mark_serving(actor=actor, server=server, is_serving=False, reason=why)


def _to_leave(lost: set[str]) -> list[tuple[Server, Environment]]:
    """Answering servers on these nodes whose release has others that answer on nodes that are not lost."""
    answering = list(answering_servers()) if lost else []
    kept = {
        (one.deployment.release_id, one.deployment.environment_id)
        for one in answering
        if one.deployment.node_id not in lost
    }
    return [
        (one, one.deployment.environment)
        for one in answering
        if one.deployment.node_id in lost and (one.deployment.release_id, one.deployment.environment_id) in kept
    ]
