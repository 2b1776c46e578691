"""Named reads of endpoints: where releases run and how they are, for gateways, the prober and the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce
from django.utils import timezone

from registry.queries.declared import declared_replicas
from serving.environments.core.endpoints import EndpointState
from serving.environments.core.replicas import desired_replicas
from serving.environments.core.sleep_lifecycle import SleepState
from serving.models import Endpoint, Node, Route, Sleep

Place = tuple[int, str]  # environment, release
_ANSWERS = Q(state=EndpointState.READY, is_serving=True, is_leaving=False)
#: After three missed heartbeats of its reporter, an endpoint may or may not answer.
HEARD_WITHIN = timedelta(seconds=15)


@dataclass(frozen=True)
class ReleaseStanding:
    """How a release stands in an environment, by its platform's last word. The default: it never ran there.

    `state` and `why` of its newest replica that is to stay, else of its newest. `count` of the replicas that serve and are to stay, of
    which `heard` have a reporter that was heard of lately (all if no reporter was), and `reported` have one in any case. `wanted`: so
    many are to serve. `hardware`: facts of the machines under them.
    """

    state: EndpointState = EndpointState.GONE
    why: str = ""
    is_wanted: bool = False
    wanted: int = 1
    count: int = 0
    heard: int = 0
    reported: int = 0
    newest_at: float | None = None  # seconds since the epoch (UTC)
    has_drifted: bool = False
    hardware: tuple[Mapping[str, Any], ...] = ()


# One row for each place; there are twice as many endpoints as rollouts. The number that a person or a rollout asked for comes first.
_STANDING = """
SELECT endpoint.environment_id, endpoint.release_id::text,
       (array_agg(endpoint.state ORDER BY endpoint.state = 'gone', endpoint.is_leaving, endpoint.id DESC))[1],
       (array_agg(endpoint.why ORDER BY endpoint.state = 'gone', endpoint.is_leaving, endpoint.id DESC))[1],
       bool_or(wanted), max(scale.replicas), count(*) FILTER (WHERE serves),
       count(*) FILTER (WHERE serves AND (reports OR NOT EXISTS (SELECT FROM serving_node WHERE seen_at >= %(since)s))),
       count(*) FILTER (WHERE serves AND reports),
       extract(epoch FROM max(endpoint.since) FILTER (WHERE serves))::float8,
       coalesce(bool_or(endpoint.has_drifted) FILTER (WHERE serves), false),
       array_agg(DISTINCT endpoint.node_id) FILTER (WHERE serves)
FROM serving_endpoint endpoint
JOIN serving_node node ON node.name = endpoint.node_id
CROSS JOIN LATERAL (SELECT endpoint.state <> 'gone' AND NOT endpoint.is_leaving, coalesce(node.seen_at >= %(since)s, false))
  AS said (wanted, reports)
CROSS JOIN LATERAL (SELECT wanted AND endpoint.is_serving) AS found (serves)
LEFT JOIN serving_scale scale
  ON scale.release_id = endpoint.release_id AND scale.environment_id = endpoint.environment_id
WHERE endpoint.release_id = ANY(%(releases)s::uuid[])
GROUP BY endpoint.environment_id, endpoint.release_id
"""


def standing_of(releases: Iterable[object]) -> dict[Place, ReleaseStanding]:
    """Where any of these releases ever ran. Two queries, and one more where an envelope is not known yet."""
    with connection.cursor() as cursor:
        since = timezone.now() - HEARD_WITHIN
        cursor.execute(_STANDING, {"releases": f"{{{','.join(map(str, releases))}}}", "since": since})
        rows = cursor.fetchall()
    unsaid = {UUID(row[1]) for row in rows if row[5] is None}
    declared = declared_replicas(unsaid) if unsaid else {}
    nodes = {name for row in rows for name in row[11] or ()}
    facts = dict(Node.objects.filter(name__in=nodes).values_list("name", "facts")) if nodes else {}
    found = {}
    for where, release, state, why, is_wanted, said, count, heard, reported, newest_at, has_drifted, on in rows:
        wanted = desired_replicas(said, declared[UUID(release)].least if said is None else None) if is_wanted else 1
        hardware = tuple(facts[name] for name in sorted(on or ()))
        counts = (wanted, count, heard, reported, newest_at, has_drifted, hardware)
        found[where, release] = ReleaseStanding(EndpointState(state), why, is_wanted, *counts)
    return found


def standing_at(release: UUID, environment: int) -> ReleaseStanding | None:
    """None if the release never ran there: how it stands is unknown."""
    return standing_of([release]).get((environment, str(release)))


def is_gone(release: UUID, environment: int) -> bool:
    """Whether the release ran there and has no server that answers, by its platform's word."""
    found = standing_at(release, environment)
    return found is not None and found.count == 0


def answering() -> QuerySet[Endpoint]:
    """Those that serve and are to stay, the newest first."""
    return Endpoint.objects.filter(_ANSWERS).order_by("-since", "-pk")


def answers(release: UUID, environment: int) -> bool:
    """Whether a server of the release is ready and answers there."""
    return answering().filter(release=release, environment=environment).exists()


def with_answering(since: datetime) -> QuerySet[Any]:
    """Every route that gateways follow, with `answering`, the number of its stable release's endpoints that answer and whose reporter
    was heard of since then, and `is_asleep`."""
    stable = Endpoint.objects.filter(release=OuterRef("stable"), environment=OuterRef("environment"))
    there = stable.filter(_ANSWERS, node__seen_at__gte=since).order_by().values("release")
    asleep = Sleep.objects.filter(environment=OuterRef("environment"), model=OuterRef("model"))
    return Route.objects.filter(environment__retired_at=None).annotate(
        answering=Coalesce(Subquery(there.annotate(found=Count("pk")).values("found")), 0),
        is_asleep=Exists(asleep.exclude(state=SleepState.AWAKE)),
    )


def on_heard_nodes(endpoints: QuerySet[Endpoint]) -> QuerySet[Endpoint]:
    """Those whose reporter was heard of lately; all if no reporter was."""
    heard = Node.objects.filter(seen_at__gte=timezone.now() - HEARD_WITHIN)
    return endpoints.filter(node__in=heard) if heard.exists() else endpoints


def is_lost_stable(release: str) -> Combinable:
    """Whether the release in the outer row's column `release` is stable there, ran there, and has no server that answers. For a filter."""
    here = Endpoint.objects.filter(environment=OuterRef("environment"), release=OuterRef(release))
    is_stable = Route.objects.filter(
        environment=OuterRef("environment"), model=OuterRef("model"), stable=OuterRef(release)
    )
    return Exists(is_stable) & Exists(here) & ~Exists(here.filter(is_serving=True, is_leaving=False))


def running(release: UUID, environment: int) -> list[Endpoint]:
    """The endpoints of the release that have an address there, also those that are set aside or drained."""
    return list(Endpoint.objects.filter(release=release, environment=environment, host__isnull=False))


def names_of(release: UUID, environment: int) -> dict[tuple[str, int], str]:
    """The names of the endpoints of the release that have an address, by host and port of either protocol."""
    return {
        (str(one.host), port): one.name
        for one in running(release, environment)
        for port in (one.http_port, one.grpc_port)
        if port is not None
    }


def replica_at(release: UUID, environment: int, name: str) -> Endpoint | None:
    """The endpoint of this name; None if no server runs there."""
    return next((one for one in running(release, environment) if one.name == name), None)


def replica_by(handle: str) -> Endpoint | None:
    """The endpoint of this replica, unless it is gone, or leaves and no server of it runs."""
    found = Endpoint.objects.filter(replica=handle).exclude(state=EndpointState.GONE).first()
    return None if found is None or (found.is_leaving and found.host is None) else found
