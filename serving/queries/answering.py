"""How many servers of a release answer in an environment, and how many are to: for many releases in one look."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import connection
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.db.models.expressions import Combinable
from django.utils import timezone

from serving.core.replicas import desired_replicas
from serving.models import Deployment, Node, Route, Server
from serving.queries.replicas import declared_replicas

Place = tuple[int, str]  # environment, release
#: Of a node that was silent for three heartbeats nobody knows whether its servers answer still.
HEARD_WITHIN = timedelta(seconds=15)


@dataclass(frozen=True)
class Serving:
    """The servers of one release in one environment that answer real inferences, as far as their agents told. `wanted`: as many are
    to. `heard`: those of nodes that were heard of lately; all of them, where no node was."""

    count: int = 0
    newest_at: float | None = None  # seconds since the epoch (UTC)
    nodes: frozenset[str] = frozenset()
    has_drifted: bool = False  # files under one of them are not those that were sealed
    wanted: int = 1
    heard: int = 0
    reported: int = 0  # those that an agent reported on lately; none if no agent did


NONE_SERVING = Serving()

# Grouped here and not in Python, because there are twice as many servers as rollouts. A server whose deployment is being
# drained answers still, but not for long. What was said of a release's number counts before any of it answers.
_SERVING = """
SELECT deployment.environment_id, deployment.release_id::text, count(server.id),
       extract(epoch FROM max(server.started_at))::float8,
       string_agg(DISTINCT deployment.node_id, ' ') FILTER (WHERE server.id IS NOT NULL),
       coalesce(bool_or(server.drift <> '[]'::jsonb), false), max(scale.replicas),
       count(server.id) FILTER (
           WHERE node.seen_at >= %(since)s OR NOT EXISTS (SELECT FROM serving_node WHERE seen_at >= %(since)s)
       ),
       count(server.id) FILTER (WHERE node.seen_at >= %(since)s)
FROM serving_deployment deployment
JOIN serving_node node ON node.name = deployment.node_id
LEFT JOIN serving_server server ON server.deployment_id = deployment.id AND server.ended_at IS NULL AND server.is_serving
LEFT JOIN serving_scale scale
  ON scale.release_id = deployment.release_id AND scale.environment_id = deployment.environment_id
WHERE deployment.state <> 'gone' AND deployment.is_wanted AND deployment.release_id = ANY(%(releases)s::uuid[])
GROUP BY deployment.environment_id, deployment.release_id
"""


def serving_of(releases: Iterable[str]) -> dict[Place, Serving]:
    """Where any of these releases is wanted. One query, and one more where an envelope is not known yet."""
    with connection.cursor() as cursor:
        since = timezone.now() - HEARD_WITHIN
        cursor.execute(_SERVING, {"releases": f"{{{','.join(releases)}}}", "since": since})
        rows = cursor.fetchall()
    unsaid = {UUID(release) for _, release, *_, said, _, _ in rows if said is None}
    declared = declared_replicas(unsaid) if unsaid else {}
    found = {}
    for where, release, count, at, nodes, has_drifted, said, heard, reported in rows:
        wanted = desired_replicas(said, declared[UUID(release)].least if said is None else None)
        on = frozenset((nodes or "").split())
        found[where, release] = Serving(count, at, on, has_drifted, wanted, heard, reported)
    return found


@dataclass(frozen=True)
class Answering:
    """Servers of one release that answer real inferences; of these, `reported`: an agent reported on them lately."""

    count: int
    reported: int


def answering_in(releases: Collection[UUID]) -> dict[Place, Answering]:
    """Where any of these releases was ever deployed. One query."""
    wanted = Q(is_wanted=True, servers__ended_at=None, servers__is_serving=True) & ~Q(state="gone")
    heard = Q(node__seen_at__gte=timezone.now() - HEARD_WITHIN)
    rows = Deployment.objects.filter(release__in=releases).values_list("environment_id", "release_id")
    counted = rows.annotate(count=Count("servers", filter=wanted), reported=Count("servers", filter=wanted & heard))
    return {(where, str(release)): Answering(count, reported) for where, release, count, reported in counted}


def answering_of(release: UUID, environment: int) -> Answering | None:
    """None if the release was never deployed there: its servers are unknown."""
    return answering_in({release}).get((environment, str(release)))


def is_gone(release: UUID, environment: int) -> bool:
    """Whether the release was deployed there and has no server that answers, as its agents reported."""
    found = answering_of(release, environment)
    return found is not None and found.count == 0


def is_lost_stable(release: str) -> Combinable:
    """Whether the release in the outer row's column `release` is stable there and has no server that answers. For a filter."""
    at = {"environment": OuterRef("environment"), "release": OuterRef(release)}
    serves_now = Route.objects.filter(
        environment=OuterRef("environment"), model=OuterRef("model"), stable=OuterRef(release)
    )
    deployed = Deployment.objects.filter(**at)
    answering = deployed.filter(is_wanted=True, servers__ended_at=None, servers__is_serving=True).exclude(state="gone")
    return Exists(serves_now) & Exists(deployed) & ~Exists(answering)


def on_heard_nodes(servers: QuerySet[Server]) -> QuerySet[Server]:
    """Those on nodes that were heard of lately; all of them, where no node was."""
    heard = Node.objects.filter(seen_at__gte=timezone.now() - HEARD_WITHIN)
    return servers.filter(deployment__node__in=heard) if heard.exists() else servers


def server_names(release: UUID, environment: int) -> dict[tuple[str, int], str]:
    """The servers of a release that run, by host and port of either protocol: `node:port`, with the port of HTTP."""
    rows = Server.objects.filter(
        deployment__release_id=release, deployment__environment_id=environment, ended_at=None
    ).values_list("host", "http_port", "grpc_port", "deployment__node_id")
    return {(host, port): f"{node}:{http}" for host, http, grpc, node in rows for port in (http, grpc)}


def deployments_by_name(release: UUID, environment: int) -> dict[str, int]:
    """The deployments of the servers that `server_names` has, by their names."""
    rows = Server.objects.filter(
        deployment__release_id=release, deployment__environment_id=environment, ended_at=None
    ).values_list("deployment__node_id", "http_port", "deployment_id")
    return {f"{node}:{port}": pk for node, port, pk in rows}


def deployment_by_name(release: UUID, environment: int, name: str) -> Deployment | None:
    """The deployment of the server that `server_names` has by this name; None where that runs no more."""
    node, _, port = name.rpartition(":")
    rows = Deployment.objects.filter(release=release, environment=environment, node=node).select_related(
        "release__model__team", "environment", "node"
    )
    return rows.filter(servers__ended_at=None, servers__http_port=port).first()


def staying_or_running(deployment: int) -> Deployment | None:
    """The deployment, unless it is gone, or is wanted no more and no server of it runs."""
    rows = Deployment.objects.filter(pk=deployment).exclude(state="gone")
    there = rows.filter(Q(is_wanted=True) | Q(servers__ended_at=None, servers__isnull=False))
    return there.select_related("release__model__team", "environment", "node").first()
