"""Replacing one replica without a lost request, and taking the traffic of one away that is told to be unwell.

Another takes its ordinal; the one that is replaced goes once as many others answer as are wanted
(`serving.targets.queries.draining`). Nothing here
waits: agents bring it about.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts.core.access import Actor, Verb, require
from ledger.core.errors import Invalid, StateChanged, Unavailable
from serving.environments.actions.locks import lock_open, lock_routes, notify_routes
from serving.environments.core.lifecycle import LIVE
from serving.environments.core.reasons import LONGEST_REASON
from serving.environments.queries.inventory import live_replicas
from serving.models import Replica, Server
from serving.targets.actions.placing import append_replica, hold_headroom, place_replica
from serving.targets.queries.placement import fleet_now, place_for
from serving.traffic.queries.endpoints import answering, on_heard_nodes


@transaction.atomic
def replace_replica(*, actor: Actor, replica: Replica, reason: str, set_aside: bool = False) -> Replica:
    """What takes the replica's place: on another node where one has room, else on its own. Asked again it is the same one.

    The replica answers until as many others do as are wanted. `set_aside`: it gets no more traffic from now on, also where no node has room
    yet; then it is given itself, and agents place another as soon as one has. Raises Refused, Invalid, StateChanged (it is leaving
    already; it is to be set aside, and no other answers), and as `place_replica`.
    """
    _require(actor, replica, reason)
    lock_open(replica.environment)
    hold_headroom()  # before the replica's row, which a drain of its node wants while it holds them
    found = _still_there(replica)
    said = reason.strip() or f"{actor.name} asked for another in its place."
    placed = _in_its_place(actor, found, said, may_wait=set_aside)
    if set_aside:  # last, as it writes to the log
        _set_aside(actor, found, said)
    return placed


def _in_its_place(actor: Actor, leaving: Replica, reason: str, *, may_wait: bool) -> Replica:
    in_its_ordinal = live_replicas().filter(
        release=leaving.release_id,
        environment=leaving.environment_id,
        ordinal=leaving.ordinal,
        is_wanted=True,
        drain_asked_at=None,
    )
    placed = in_its_ordinal.exclude(pk=leaving.pk).first()
    if placed is not None:
        return placed
    try:
        with transaction.atomic():
            Replica.objects.filter(pk=leaving.pk).update(drain_asked_at=timezone.now(), drain_reason=reason)
            release, environment, but = leaving.release, leaving.environment, {leaving.node_id}
            if not place_for(release, environment, fleet_now(), but=but).node:
                but = set()
            return place_replica(
                actor=actor, release=release, environment=environment, reason=reason, ordinal=leaving.ordinal, but=but
            )
    except Unavailable:
        if not may_wait:
            raise
        return leaving


@transaction.atomic
def set_aside_replica(*, actor: Actor, replica: Replica, reason: str) -> Replica:
    """The replica, to which gateways send nothing any more; another takes its place as soon as a node has room. Idempotent.

    Raises Refused, Invalid, and StateChanged: it is leaving already, or no other replica of the release answers.
    """
    _require(actor, replica, reason)
    lock_routes(replica.environment)
    found = _still_there(replica)
    _set_aside(actor, found, reason.strip())
    return found


def sentence(why: str) -> str:
    """Of a step's reason."""
    return f"{why}.".capitalize()


def _require(actor: Actor, replica: Replica, reason: str) -> None:
    release, environment = replica.release, replica.environment
    require(actor, Verb.SCALE_RELEASE, release.model.team.slug, release.model.slug)
    if not environment.is_routed:
        raise Invalid("not_scaled", f"{environment.slug} has no gateway: what gates measure there is one server.")
    if len(reason) > LONGEST_REASON:
        raise Invalid("reason_too_long", f"The reason has {len(reason)} characters; {LONGEST_REASON} are the most.")


def _still_there(replica: Replica) -> Replica:
    found = live_replicas().filter(pk=replica.pk, is_wanted=True).first()
    if found is None:
        raise StateChanged(
            "replica_leaving",
            f"The replica on {replica.node_id} is being taken out already. See what there is: "
            f"sluicegate api GET /models/{replica.release.model.slug}/releases/{replica.release.name}/replicas",
            replica=replica.pk,
        )
    return found


def _set_aside(actor: Actor, one: Replica, reason: str) -> None:
    """For a transaction that holds the routes: an agent that lets go of others waits for it."""
    if one.is_set_aside:
        return
    release = one.release
    others = answering().filter(release=release, environment=one.environment).exclude(replica=str(one.pk))
    if not on_heard_nodes(others).exists():
        raise StateChanged(
            "last_replica",
            f"No other replica of {release.model.slug} {release.name} is known to answer in {one.environment.slug}: "
            f"the one on {one.node_id} keeps its traffic. Replace it without setting it aside.",
            replica=one.pk,
        )
    Replica.objects.filter(pk=one.pk, state__in=sorted(LIVE)).update(is_set_aside=True, version=F("version") + 1)
    Server.objects.filter(replica=one, ended_at=None).update(is_serving=False)
    one.refresh_from_db(fields=["is_set_aside", "version", "state"])
    append_replica(one, "deployment.set_aside", actor, reason, from_state=one.state, to_state=one.state)
    notify_routes()
