"""The servers that an environment of the platform `static` lists: add one, and take one off the list."""

from __future__ import annotations

import re
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts.core.access import EVERY_TEAM, Actor, Verb, require
from ledger.actions import append_event
from ledger.core.errors import Invalid, StateChanged, field_error
from ledger.core.verbs import EventVerb
from serving.environments.actions.locks import lock_open
from serving.environments.core.addresses import why_not_served_at
from serving.environments.core.platforms import PlatformKind
from serving.environments.queries.inventory import live_replicas, nodes
from serving.models import Environment, ListedServer, Node
from serving.targets.actions.placing import hold_headroom
from serving.targets.core.static_servers import NOTHING, StaticServer, mistakes, share_files
from serving.targets.queries.static_servers import listed_server

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,58}[A-Za-z0-9_])?")
_KIND = re.compile(r"[A-Za-z0-9._-]{0,60}")


@transaction.atomic
def list_server(
    *,
    actor: Actor,
    environment: Environment,
    name: str,
    address: str,
    runtime: str,
    loads: str = NOTHING,
    kind: str = "",
) -> ListedServer:
    """Returns the server, which takes releases of the environment as soon as the agent has reached it.

    Args:
        address: `host:HTTP port:gRPC port`, of this machine or in SLUICEGATE_PRIVATE_NETWORKS.
        runtime: the image by digest that its owner names; releases are sealed for it.
        loads: how releases get there (`serving.targets.core.static_servers`).
        kind: the name that the server must state; empty for any.

    Raises Refused, Invalid, StateChanged (the environment is retired; the name, the address or the folder is taken).
    """
    require(actor, Verb.ADMINISTER, EVERY_TEAM)
    at = _checked(name, address, loads, runtime, kind)
    environment = lock_open(environment)
    if environment.platform != PlatformKind.STATIC:
        raise Invalid(
            "environment_not_static",
            f"{environment.slug} runs releases on this installation's machine, so it lists no servers. Change that first: "
            f"sluicegate api PATCH /environments/{environment.slug} platform=static --if-match {environment.version}",
        )
    hold_headroom()
    _refuse_taken(name, at, loads)
    again: dict[str, Any] = {
        "runtimes": [],
        "facts": {},
        "gpus": {},
        "seen_at": None,
        "removed_at": None,
    }
    Node.objects.update_or_create(name=name, defaults=again)
    row = ListedServer.objects.create(
        node_id=name,
        environment=environment,
        host=at.host,
        http_port=at.http_port,
        grpc_port=at.grpc_port,
        kind=kind,
        loads=loads,
        runtime=runtime,
        listed_by=actor.name,
        listed_at=timezone.now(),
    )
    _tell(EventVerb.ENVIRONMENT_SERVER_LISTED, row, actor)
    return row


@transaction.atomic
def remove_server(*, actor: Actor, environment: Environment, name: str, reason: str = "") -> None:
    """Takes a server off the list of the environment. Nothing is sent to it any more; its owner ends it.

    Raises Refused, NotFound, and StateChanged: it still has a release.
    """
    require(actor, Verb.ADMINISTER, EVERY_TEAM)
    hold_headroom()
    row = listed_server(environment, name)
    here = list(live_replicas().filter(node=row.node_id).order_by("pk"))
    if here:
        named = ", ".join(f"{one.release.model.slug} {one.release.name}" for one in here[:5])
        raise StateChanged(
            "server_in_use",
            f"{row.node_id} has {named}. Move each to another server first (POST …/replicas/replace in the API), or take it out, "
            "and remove the server when it is gone.",
            server=row.node_id,
        )
    Node.objects.filter(pk=row.node_id).update(removed_at=timezone.now())
    _tell(EventVerb.ENVIRONMENT_SERVER_REMOVED, row, actor, reason)
    row.delete()


def _checked(name: str, address: str, loads: str, runtime: str, kind: str) -> StaticServer:
    if not _NAME.fullmatch(name):
        raise field_error(
            "name",
            f"{name[:80]!r} is no name of a server.",
            "Use 1 to 60 letters, digits, dashes and underscores, with no dash at either end, such as triton-7.",
        )
    if not _KIND.fullmatch(kind):
        raise field_error(
            "kind", f"{kind[:80]!r} is no name of a server kind.", "Use the name that it states, such as triton."
        )
    try:
        at = StaticServer.at(address)
    except ValueError as error:
        raise field_error("address", f"{str(error)[:300]}.", "Correct it.") from None
    if why := why_not_served_at(at.host, settings.PRIVATE_NETWORKS):
        raise field_error("address", why, "Name its network in SLUICEGATE_PRIVATE_NETWORKS if it is private.")
    for field, why in mistakes(loads, runtime, root=settings.STATIC_FOLDER):
        raise field_error(field, why, "Correct it.")
    return at


def _refuse_taken(name: str, at: StaticServer, loads: str) -> None:
    if nodes().filter(name=name).exists() or live_replicas().filter(node=name).exists():
        raise StateChanged("server_listed", f"{name} is the name of another server or machine. Choose another name.")
    ports = (at.http_port, at.grpc_port)
    same = Q(host=at.host) & (Q(http_port__in=ports) | Q(grpc_port__in=ports))
    taken = ListedServer.objects.filter(same).select_related("environment").first()
    if taken is not None:
        raise StateChanged(
            "server_listed",
            f"{taken.environment.slug} lists {at} already, as {taken.node_id}. A server serves one environment: remove it there "
            "first, or name another.",
            server=taken.node_id,
        )
    for other in ListedServer.objects.order_by("pk"):
        if share_files(loads, other.loads):
            raise StateChanged(
                "server_listed",
                f"{other.node_id} has the model repository {other.loads}, so {loads} would mix the releases of two servers. "
                "Give each server a folder of its own.",
                server=other.node_id,
            )


def _tell(verb: EventVerb, row: ListedServer, actor: Actor, reason: str = "") -> None:
    facts = {
        "server": row.node_id,
        "address": f"{row.host}:{row.http_port}:{row.grpc_port}",
        "kind": row.kind,
        "loads": row.loads,
        "runtime": row.runtime,
    }
    append_event(
        verb=verb,
        subject_type="environment",
        subject_id=row.environment.slug,
        actor=actor,
        reason=reason.strip(),
        facts=facts,
    )
