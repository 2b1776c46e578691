"""Placing one replica of a release on a node, and the reasons for which no node takes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import connection
from django.db.models import F

from accounts.core.access import Actor
from ledger.actions import append_event
from ledger.core.errors import DomainError, Refused, Unavailable
from registry.core.kinds import runtime_of
from registry.models import Release
from registry.queries import manifest_of
from serving.environments.core.platforms import PlatformKind
from serving.environments.queries.inventory import nodes, open_to, with_listing
from serving.models import Environment, Node, Replica
from serving.targets.core.containment import may_run_code, not_contained
from serving.targets.core.placement import Choice
from serving.targets.queries.node_fit import no_runtime, nodes_for, offering, why_refused
from serving.targets.queries.placement import fleet_now, place_for

#: The advisory lock under which headroom of nodes is given away; any number that nobody else uses.
_PLACEMENT_LOCK = 7_316_002


def place_replica(
    *,
    actor: Actor,
    release: Release,
    environment: Environment,
    reason: str,
    ordinal: int = 0,
    but: Iterable[str] = (),
) -> Replica:
    """A new replica on the best node, whose headroom it holds from now on. For a transaction that holds the environment's row.

    Raises:
        Refused: no node with the release's runtime image may run its code, as none can shut it in.
        Unavailable: no node has the release's runtime image, or every one contradicts its envelope or has no room.
    """
    hold_headroom()
    choice = place_for(release, environment, fleet_now(), but=but)
    if not choice.node:
        raise why_nowhere(release, environment, choice)
    made = Replica.objects.create(
        release=release,
        environment=environment,
        node_id=choice.node,
        ordinal=ordinal,
        claim=choice.claim.as_json(),
        reason=reason,
    )
    append_replica(made, "deployment.requested", actor, reason, to_state=made.state)
    return made


def append_replica(
    replica: Replica, verb: str, actor: Actor, reason: str, *, from_state: str = "", to_state: str = ""
) -> None:
    """Writes an event of the replica to the log."""
    release = replica.release
    append_event(
        verb=verb,
        subject_type="deployment",
        subject_id=str(replica.pk),
        actor=actor,
        from_state=str(from_state),
        to_state=str(to_state),
        reason=reason,
        facts={
            "model": release.model.slug,
            "release": release.name,
            "digest": release.digest,
            "environment": replica.environment.slug,
            "node": replica.node_id,
        },
    )


def hold_headroom() -> None:
    """Keeps others from giving headroom of nodes away until the commit: two environments must not give the same one away, nor may a node be
    shut or taken off the list under a replica that is just being placed there.

    Who places several replicas holds them before the first event.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_PLACEMENT_LOCK])


def why_nowhere(release: Release, environment: Environment, choice: Choice) -> DomainError:
    """The error that says why no node took the release, and what to do."""
    name, wanted = f"{release.model.slug} {release.name}", runtime_of(manifest_of(release))
    every = with_listing(nodes()).order_by(F("seen_at").desc(nulls_last=True))
    free = open_to(environment, every)
    if fitting := nodes_for(release, free):
        best = fitting[0]  # those that may not run its code come last
        if release.is_code_bearing and not may_run_code(best.facts):
            message = not_contained(release.model.slug, release.name)
            return Refused("not_contained", message, release=release.name, node=best.name)
        left_out = [f"{node.name}: nothing is heard of it, or the release failed there." for node in fitting]
        refused = list(choice.refused) or left_out
        return Unavailable(
            "no_room",
            f"No node has room for {name}: {' '.join(refused)} Drain what is not needed there, or add a node.",
            release=release.name,
            nodes=refused,
        )
    if refused := why_refused(release, free):
        is_plan = all(its.cannot_load for _, its in offering(release, free))
        if is_plan:
            return Unavailable(
                "plan_loads_nowhere",
                f"The engine plan of {name} loads on no node with its runtime: {' '.join(refused)} "
                "Build the plan where it is to run and push it, or start a node that it was built for.",
                release=release.name,
                nodes=refused,
            )
        return Unavailable(
            "fits_nowhere",
            f"{name} fits no node with its runtime: {' '.join(refused)} "
            "Start a node that it fits, or correct its envelope in a new release.",
            release=release.name,
            nodes=refused,
        )
    return _no_runtime(environment, name, wanted, free)


def _no_runtime(environment: Environment, name: str, wanted: Mapping[str, Any], free: Sequence[Node]) -> Unavailable:
    known = sorted({own["image"] for node in free for own in node.runtimes})
    empty = [
        f" {node.name} {'does not run every kind' if node.runtimes else 'runs nothing'}: {why}"
        for node in free
        if (why := node.facts.get("missing"))
    ]
    says = f"{no_runtime(wanted, free)} Push the release for one of these, or start a node with that runtime."
    if not free and environment.platform == PlatformKind.STATIC:
        says = (
            f"{environment.slug} lists no server, so {name} cannot run there. List one: "
            f"sluicegate api POST /environments/{environment.slug}/servers name=NAME address=HOST:HTTP:GRPC runtime=IMAGE"
        )
    return Unavailable(
        "no_node_for_runtime", says + "".join(empty), image=wanted["image"], backend=wanted["backend"], known=known
    )
