"""How many replicas of a release there are to be, and the controller that brings them about.

What is wanted stands in rows. Any node's agent may take the next steps, at its heartbeat: they are taken under one lock, from what is
there, so it does not matter whose agent does, nor whether one dies at it (`serving.environments.core.replicas`).
"""

from __future__ import annotations

from django.db import connection, transaction
from django.db.models import F

from accounts.core.access import Actor, Verb, require, require_version
from ledger.actions import append_event
from ledger.core.errors import DomainError, Invalid, StateChanged
from registry.models import Release
from registry.queries.declared import declared_replicas
from serving.environments.actions.locks import lock_open, lock_routes
from serving.environments.core.lifecycle import ReplicaState
from serving.environments.core.replicas import MOST_REPLICAS, ReplicaStep, What
from serving.environments.core.sleep_lifecycle import SleepState
from serving.environments.queries.inventory import replicas_in
from serving.models import Environment, Replica, ReplicaTarget, Route, Sleep
from serving.targets.actions.lifecycle import drain_replica
from serving.targets.actions.placing import hold_headroom, place_replica, why_nowhere
from serving.targets.actions.replacing import replace_replica, sentence
from serving.targets.queries.placement import fleet_now, place_for
from serving.targets.queries.replicas import ReplicaPlan, replica_plans

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
) -> ReplicaTarget:
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
    found = ReplicaTarget.objects.filter(release=release, environment=environment).first()
    require_version(found.version if found else 0, expected_version, f"The scale of {release.name}")
    if found is not None and found.replicas == replicas:
        return found
    said = {"replicas": replicas, "reason": reason, "changed_by": actor.name}
    scale, is_new = ReplicaTarget.objects.update_or_create(release=release, environment=environment, defaults=said)
    if not is_new:
        ReplicaTarget.objects.filter(pk=scale.pk).update(version=F("version") + 1)
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
        choice = place_for(release, environment, fleet_now())
        return "" if choice.node else why_nowhere(release, environment, choice).message
    failed = replicas_in(release, environment).filter(is_wanted=True, state=ReplicaState.FAILED).first()
    return "" if failed is None else f"The one on node {failed.node_id} failed: {failed.reason}"


def continue_placing(*, actor: Actor) -> list[str]:
    """Takes what steps there are to be taken now, for every release everywhere; what could not be done, as sentences.

    For an agent's heartbeat. Nothing where another agent is at it. Raises Refused.
    """
    require(actor, Verb.ADMINISTER, "")
    due = {plan.environment.pk: plan.environment for plan in replica_plans() if plan.steps}
    return [trouble for environment in due.values() for trouble in _bring_about(actor, environment)]


@transaction.atomic
def _bring_about(actor: Actor, environment: Environment) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_CONTROLLER_LOCK])
        if not cursor.fetchone()[0]:
            return []
    lock_routes(environment)
    hold_headroom()  # before the first event: of several steps one tells of its own, and the next places
    # Their replicas, too: an agent that has moved one tells of it next. So what is to be done is what there is then.
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
        reason, release, environment = f"{plan.wanted} replicas are wanted.", plan.release, plan.environment
        place_replica(actor=actor, release=release, environment=environment, reason=reason, ordinal=step.ordinal)
        return
    replica = Replica.objects.select_related("release__model__team", "environment").get(pk=step.key)
    if step.what is What.RENEW:
        replace_replica(actor=actor, replica=replica, reason=sentence(step.why))
        return
    drain_replica(actor=actor, replica=replica, reason=sentence(step.why), is_spare=True)
