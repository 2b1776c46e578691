"""Releases on this installation's machine: rows that say what is wanted, which an agent brings about (`serving.targets.agent`)."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from accounts.core.access import Actor
from registry.core.kinds import runtime_of
from registry.models import Release
from registry.queries import manifest_of
from serving.environments.actions.locks import lock_routes
from serving.environments.queries.inventory import live_replicas
from serving.models import Environment, Node, Replica
from serving.targets.actions.lifecycle import drain_replica, ensure_replica, release_replica
from serving.targets.actions.placing import hold_headroom
from serving.targets.actions.replacing import replace_replica, set_aside_replica
from serving.targets.actions.replicas import scale_release, why_not_placed
from serving.targets.local_trial import local_trial
from serving.targets.port import Forecast, Machine, Trial
from serving.targets.queries.node_fit import next_node, no_runtime, nodes_for, places_for, why_refused
from serving.targets.queries.placement import most_that_fit
from serving.targets.queries.removal import what_goes

#: A node that was silent for longer is given nothing.
SEEN_WITHIN = timedelta(seconds=60)


class Local:
    """The platform `local`. A replica's handle is the key of its replica."""

    def start(self, release: Release, environment: Environment, *, actor: Actor, reason: str) -> None:
        ensure_replica(actor=actor, release=release, environment=environment, reason=reason)

    def stop(self, release: Release, environment: Environment, *, actor: Actor, reason: str) -> None:
        release_replica(actor=actor, release=release, environment=environment, reason=reason)

    def scale(self, release: Release, environment: Environment, replicas: int, *, actor: Actor, reason: str) -> None:
        scale_release(actor=actor, release=release, environment=environment, replicas=replicas, reason=reason)

    def replace(self, replica: str, *, actor: Actor, reason: str, set_aside: bool = False) -> None:
        replace_replica(actor=actor, replica=_replica(replica), reason=reason, set_aside=set_aside)

    def set_aside(self, replica: str, *, actor: Actor, reason: str) -> None:
        set_aside_replica(actor=actor, replica=_replica(replica), reason=reason)

    def trial(self, release: Release, environment: Environment) -> Trial | None:
        return local_trial(release, environment)

    def forecast(self, release: Release, environment: Environment | None, *, replicas: int = 1) -> Forecast:
        if environment is None:
            return Forecast(_machine(next_node(release)))
        places = places_for(release, environment)
        machine = _machine(places.of(release))
        since = timezone.now() - SEEN_WITHIN
        about = [one for one in places.free if one.seen_at is not None and one.seen_at >= since]
        node = next(iter(nodes_for(release, about)), None)
        if node is not None:
            kept = live_replicas().filter(node=node, is_wanted=True).defer(None)
            held = {
                f"{one.release.model.slug} {one.release.name}": manifest_of(one.release)["envelope"] for one in kept
            }
            fit = most_that_fit(release, environment, replicas) if replicas > 1 else 1
            return Forecast(machine, beside=(Machine(node.name, node.facts), held), replicas=fit)
        if refusing := why_refused(release, about):
            return Forecast(
                machine, "does_not_fit", f"{release.name} fits no node with its runtime: {' '.join(refusing)}"
            )
        return Forecast(machine, "no_node", no_runtime(runtime_of(manifest_of(release)), about))

    def why_waiting(self, release: Release, environment: Environment) -> str:
        return why_not_placed(release, environment)

    def plan_clearing(self, environment: Environment, *, is_deleted: bool) -> list[str]:
        return what_goes(environment, is_deleted=is_deleted)

    def hold(self, environment: Environment, *starting: Release) -> set[Release]:
        hold_headroom()
        releases = {one.release for one in _staying(environment)}
        lock_routes(environment, *releases, *starting)
        return releases

    def clear(self, environment: Environment, *, actor: Actor, reason: str, is_deleted: bool) -> None:
        for one in _staying(environment):
            drain_replica(actor=actor, replica=one, reason=reason, is_spare=True)


def _replica(replica: str) -> Replica:
    return Replica.objects.select_related("release__model__team", "environment", "node").get(pk=replica)


def _machine(node: Node | None) -> Machine | None:
    return None if node is None else Machine(node.name, node.facts)


def _staying(environment: Environment) -> list[Replica]:
    return list(live_replicas().filter(environment=environment, is_wanted=True).order_by("pk"))
