"""The servers that environments list, each with its state and its releases."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet

from accounts.core.access import Actor
from ledger.core.errors import NotFound
from ledger.queries import clock
from registry.queries import visible_models
from serving.environments.core.addresses import why_not_served_at
from serving.environments.core.lifecycle import ReplicaState
from serving.environments.queries.inventory import live_replicas
from serving.environments.queries.reporting import is_reporting
from serving.models import Environment, ListedServer, Replica
from serving.targets.core.static_servers import mistakes


class ServerState(StrEnum):
    """`waiting`: no agent has looked at it yet · `silent`: the agent does not report · `unusable`: it does not answer, takes nothing, or
    lies outside today's settings · `loading`: a release is being brought up or taken out · `serving` · `free`."""

    WAITING = "waiting"
    SILENT = "silent"
    UNUSABLE = "unusable"
    LOADING = "loading"
    SERVING = "serving"
    FREE = "free"


@dataclass(frozen=True)
class ServerView:
    """`says`: the state as a sentence. `releases`: `model rN` for each that it has, of models that the reader may see."""

    server: ListedServer
    state: ServerState
    says: str
    releases: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.server.node_id

    @property
    def address(self) -> str:
        return f"{self.server.host}:{self.server.http_port}:{self.server.grpc_port}"


def listed_servers() -> QuerySet[ListedServer]:
    return ListedServer.objects.select_related("node", "environment").order_by("node_id")


def why_out_of_bounds(server: ListedServer) -> str:
    """Returns why today's settings do not allow the server, as a sentence; empty if they do."""
    wrong = [why for _, why in mistakes(server.loads, server.runtime, root=settings.STATIC_FOLDER)]
    return why_not_served_at(server.host, settings.PRIVATE_NETWORKS) or " ".join(wrong)


def listed_server(environment: Environment, name: str) -> ListedServer:
    """Raises NotFound."""
    found = listed_servers().filter(environment=environment, pk=name).first()
    if found is None:
        raise NotFound("no_such_server", f"{environment.slug} lists no server {name}.", server=name)
    return found


def servers_of(actor: Actor, environment: Environment) -> list[ServerView]:
    """The servers that the environment lists, by name. Two queries."""
    rows = list(listed_servers().filter(environment=environment))
    visible = visible_models(actor).filter(pk=OuterRef("release__model"))
    there = live_replicas().filter(node__in=[row.node_id for row in rows]).annotate(is_visible=Exists(visible))
    held: dict[str, list[Any]] = {}
    for one in there.order_by("pk") if rows else ():
        held.setdefault(one.node_id, []).append(one)
    now = clock.now()
    return [_view(row, held.get(row.node_id, []), now) for row in rows]


def _view(row: ListedServer, held: list[Any], now: datetime) -> ServerView:
    mine = [one for one in held if one.is_visible]
    releases = tuple(f"{one.release.model.slug} {one.release.name}" for one in mine)
    return ServerView(row, *_state(row, held, mine, now), releases)


def _state(row: ListedServer, held: list[Replica], mine: list[Replica], now: datetime) -> tuple[ServerState, str]:
    node = row.node
    if why := why_out_of_bounds(row):
        return ServerState.UNUSABLE, f"{why} Until then the agent leaves this server alone."
    if node.seen_at is None:
        return ServerState.WAITING, "No agent has looked at it yet. Start one if none runs: manage.py agent"
    if not is_reporting(node, now):
        return (
            ServerState.SILENT,
            "The agent does not report, so whether it answers is unknown. Look at the agent's log.",
        )
    if missing := str(node.facts.get("missing", "")):
        return ServerState.UNUSABLE, missing
    if not held:
        return ServerState.FREE, "It answers, and has no release."
    if all(one.state == ReplicaState.READY for one in held):
        return ServerState.SERVING, "It answers real requests of its release."
    why = next((one.reason for one in mine if one.state != ReplicaState.READY and one.reason), "")
    return ServerState.LOADING, why or "A release is being loaded or taken out."
