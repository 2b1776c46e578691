"""What the control plane reads from and writes to the database. Blocking: call it in a thread."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q, QuerySet

from accounts.core.access import Actor
from ledger.queries import clock
from registry.models import Release
from registry.queries import whole_releases
from serving.actions.gateways import record_refused_stream
from serving.adapters.mirror_secret import mirror_secret
from serving.control_plane.model_settings import (
    classes_of,
    is_idempotent,
    limits_of,
    retries_resets,
    slow_ms_of,
    tenants_of,
)
from serving.control_plane.request_log import LoggedRequest
from serving.control_plane.server import GatewayIdentity
from serving.core.admission import Proof, admission_of
from serving.core.bounds import RequestBounds, bounds_of
from serving.core.lifecycle import LIVE, DeploymentState
from serving.core.routes import (
    Arm,
    Endpoint,
    ModelRoute,
    Prober,
    RoutingTable,
)
from serving.models import Environment, Gateway, RequestExample, Route, Server, slot_of

log = logging.getLogger(__name__)

#: A gateway that was silent for this long has its share of the in-flight bound given to the others. Longer than a restart:
#: a bound that changes makes every gateway build its clusters anew.
SHARES_WITHIN_S = 600.0


@dataclass(frozen=True)
class Loaded:
    """One consistent reading. `known` maps a digest to servers that live but do not serve, by environment."""

    tables: dict[str, RoutingTable]
    known: dict[str, dict[str, tuple[Endpoint, ...]]]
    gateways: dict[str, GatewayIdentity]


def load() -> Loaded:
    """All routed environments, read in one snapshot of the database. Raises django.db.Error.

    Plain rows, not models: with a thousand routes, building Django's objects would take most of the time in which a change of a
    weight is in force.
    """
    is_outermost = not connection.in_atomic_block
    with transaction.atomic():
        if is_outermost:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        environments = {one.pk: one for one in Environment.objects.filter(is_routed=True)}
        routes = [_RouteRow(*row) for row in Route.objects.order_by("model__slug").values_list(*_RouteRow.columns())]
        serving, known, ready = _servers()
        forceable = [
            one
            for pk, ids in ready.items()
            if pk in environments and environments[pk].allows_forced_release
            for one in ids
        ]
        releases = _sealed({*forceable, *(pk for one in routes for pk in (one.stable_id, one.candidate_id) if pk)})
        rows = list(Gateway.objects.select_related("environment"))
    others: defaultdict[tuple[int, int], list[_Sealed]] = defaultdict(list)
    for where in environments:
        for pk in ready[where] if environments[where].allows_forced_release else ():
            others[where, releases[pk].model_id].append(releases[pk])
    about = _about(rows)
    models: defaultdict[int, list[ModelRoute]] = defaultdict(list)
    for one in routes:
        where = one.environment_id
        forced = others[where, one.model_id] if others else ()
        models[where].append(_model_route(one, releases, serving[where], forced, gateways=max(about[where], 1)))
    tables = {
        one.slug: RoutingTable(one.slug, one.generation, one.allows_forced_release, tuple(models[pk]))
        for pk, one in environments.items()
    }
    gateways = {one.name: _identity(one) for one in rows}
    return Loaded(tables, {one.slug: dict(known[pk]) for pk, one in environments.items()}, gateways)


class _RouteRow(NamedTuple):
    """A route and what is read of its model."""

    pk: int
    environment_id: int
    model_id: int
    stable_id: UUID
    candidate_id: UUID | None
    generation: int
    changes: int
    candidate_bp: int
    mirror_bp: int
    proven: dict[str, Any]
    slug: str
    objectives: Any
    traffic_policy: Any

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        of_model = {"slug", "objectives", "traffic_policy"}
        return tuple(f"model__{name}" if name in of_model else name for name in cls._fields)


class _Sealed(NamedTuple):
    """What gateways are told of a release."""

    pk: UUID
    model_id: int
    number: int
    name: str
    digest: str
    bounds: RequestBounds


#: Sealed releases never change, so each is read once. Those that are asked for no more are forgotten.
_known_releases: dict[UUID, _Sealed] = {}


def _sealed(wanted: set[UUID]) -> dict[UUID, _Sealed]:
    global _known_releases
    found = {pk: _known_releases[pk] for pk in wanted & _known_releases.keys()}
    for one in whole_releases(wanted - found.keys()).values():
        bounds = bounds_of(one.manifest)
        found[one.pk] = _Sealed(one.pk, one.model_id, one.number or 0, one.name, str(one.digest), bounds)
    _known_releases = found
    return found


def _about(gateways: Iterable[Gateway]) -> Counter[int]:
    """How many gateways share the servers of each environment, by its id."""
    since = clock.now() - timedelta(seconds=SHARES_WITHIN_S)
    return Counter(one.environment_id for one in gateways if one.seen_at is not None and one.seen_at >= since)


_ByEnvironment = defaultdict[int, dict[str, tuple[Endpoint, ...]]]


def _servers() -> tuple[_ByEnvironment, _ByEnvironment, defaultdict[int, set[UUID]]]:
    """Serving endpoints and known ones, by environment and digest, and the releases that are ready there."""
    serving: _ByEnvironment = defaultdict(dict)
    known: _ByEnvironment = defaultdict(dict)
    ready: defaultdict[int, set[UUID]] = defaultdict(set)
    rows = Server.objects.filter(ended_at=None, deployment__state__in=[state.value for state in LIVE]).order_by("pk")
    columns = ("environment_id", "state", "release_id", "release__digest")
    own = ("host", "http_port", "grpc_port", "is_serving", "probed_at")
    latest = {
        row[0]: row[1:] for row in rows.values_list("deployment_id", *own, *(f"deployment__{one}" for one in columns))
    }
    for host, http_port, grpc_port, is_serving, probed_at, where, state, release_id, digest in latest.values():
        endpoint = Endpoint(host, http_port, grpc_port)
        is_ready = is_serving and state == DeploymentState.READY
        book = serving if is_ready else known
        if is_ready or probed_at is not None:
            book[where][digest] = tuple(sorted((*book[where].get(digest, ()), endpoint)))
        if is_ready:
            ready[where].add(release_id)
    return serving, known, ready


def _model_route(
    route: _RouteRow,
    releases: Mapping[UUID, _Sealed],
    serving: Mapping[str, tuple[Endpoint, ...]],
    forceable: Iterable[_Sealed],
    *,
    gateways: int,
) -> ModelRoute:
    def arm(release: _Sealed) -> Arm:
        of = release.bounds
        proof = Proof.from_json(route.proven.get(str(release.pk)))
        most = admission_of(of.declared_in_flight, of.instances, proof).in_flight
        at = serving.get(release.digest, ())
        return Arm(release.name, release.digest, at, most, of.max_request_bytes, of.has_streams, of.max_batch)

    split = {route.stable_id, route.candidate_id}
    others = sorted((one for one in forceable if one.pk not in split), key=lambda one: one.number)
    return ModelRoute(
        route_id=route.pk,
        model=route.slug,
        generation=route.generation,
        stable=arm(releases[route.stable_id]),
        candidate=arm(releases[route.candidate_id]) if route.candidate_id else None,
        candidate_bp=route.candidate_bp,
        others=tuple(arm(one) for one in others),
        limits=limits_of(route),
        mirror_bp=route.mirror_bp,
        prober=_prober_at(settings.PROBER_ADDRESS) if route.mirror_bp else None,
        slot=slot_of(route.changes),
        gateways=gateways,
        slow_ms=slow_ms_of(route) if route.candidate_id else None,
        tenants=tenants_of(route),
        classes=classes_of(route),
        is_idempotent=is_idempotent(route),
        retries_resets=retries_resets(route),
    )


@cache
def _prober_at(address: str) -> Prober | None:
    """The settings' prober. An invalid address disables mirroring; traffic goes on. Logged once."""
    try:
        return Prober.at(address, mirror_secret())
    except ValueError as error:
        log.warning("%s; nothing is mirrored", error)
        return None


def _identity(gateway: Gateway) -> GatewayIdentity:
    http = urlsplit(gateway.http_url)
    grpc_host, _, grpc_port = gateway.grpc_address.rpartition(":")
    addresses = ((http.hostname or "127.0.0.1", http.port or 80), (grpc_host.strip("[]"), int(grpc_port)))
    where = tuple(dict.fromkeys(addresses))
    is_drained = gateway.drained_at is not None
    return GatewayIdentity(
        gateway.pk, gateway.name, gateway.environment.slug, where, settings.TRUSTED_PROXIES, is_drained
    )


@dataclass(frozen=True)
class AckRow:
    """One gateway's word on one route's generation. `follows`: it routes by that generation in spite of the error."""

    gateway_id: int
    route_id: int
    generation: int
    error: str
    at: datetime
    follows: bool = False


def write_acks(rows: Iterable[AckRow]) -> None:
    """Upserts. An older generation never overwrites a newer one, and a repeated word keeps its first time. What a gateway has
    taken, it has taken, whatever it says of that generation later.
    """
    statement = """
        INSERT INTO serving_routeack (gateway_id, route_id, generation, acked_at, error, taken)
        SELECT %s, %s, %s, %s, %s, %s
         WHERE EXISTS (SELECT 1 FROM serving_gateway WHERE id = %s)
           AND EXISTS (SELECT 1 FROM serving_route WHERE id = %s)
        ON CONFLICT (gateway_id, route_id) DO UPDATE
           SET generation = EXCLUDED.generation, acked_at = EXCLUDED.acked_at, error = EXCLUDED.error,
               taken = GREATEST(EXCLUDED.taken, serving_routeack.taken)
         WHERE EXCLUDED.generation > serving_routeack.generation
            OR (EXCLUDED.generation = serving_routeack.generation
                AND (EXCLUDED.error <> serving_routeack.error OR EXCLUDED.taken > serving_routeack.taken))
    """
    with transaction.atomic(), connection.cursor() as cursor:
        for row in rows:
            taken = row.generation if row.follows or not row.error else 0
            about = (row.gateway_id, row.route_id)
            cursor.execute(statement, [*about, row.generation, row.at, row.error, taken, *about])


def write_seen(gateway_ids: Iterable[int], at: datetime) -> None:
    Gateway.objects.filter(pk__in=list(gateway_ids)).update(seen_at=at)


def write_refusal(gateway_id: int, peer: str, reason: str) -> None:
    record_refused_stream(gateway_id, actor=Actor.system("control_plane"), peer=peer, reason=reason)


#: Of each arm of a rollout and each kind so many are kept: the first, since when it was so, and the latest.
KEPT_FIRST, KEPT_LATEST = 20, 20


def write_examples(gateway: GatewayIdentity, requests: Iterable[LoggedRequest]) -> None:
    """Those of arms that a candidate stands beside now, with their servers."""
    requests = list(requests)
    digests = {one.digest for one in requests}
    routes = Route.objects.filter(environment__slug=gateway.environment, candidate__isnull=False)
    arms: dict[str, tuple[int, Release, Release]] = {}
    for route in routes.select_related("stable", "candidate"):
        for release in (route.stable, candidate := route.candidate):
            if candidate is not None and release is not None and release.digest in digests:
                arms[release.digest] = (route.environment_id, candidate, release)
    servers = _servers_at({one.server for one in requests})
    rows = [
        RequestExample(
            environment_id=environment, candidate=candidate, release=release, gateway=gateway.name,
            server_id=servers.get((release.pk, one.server)), kind=one.kind, at=one.at, request_id=one.request_id,
            took_ms=one.took_ms, http_status=one.http_status, grpc_status=one.grpc_status, tries=one.tries,
            flags=one.flags, address=one.server,
        )
        for one in requests
        if one.digest in arms
        for environment, candidate, release in [arms[one.digest]]
    ]  # fmt: skip
    with transaction.atomic():
        RequestExample.objects.bulk_create(rows)
        for key in {(one.environment_id, one.candidate_id, one.release_id, one.kind) for one in rows}:
            columns = ("environment", "candidate", "release", "kind")
            _forget(RequestExample.objects.filter(**dict(zip(columns, key, strict=True))))


def _forget(examples: QuerySet[RequestExample]) -> None:
    """All but the first and the latest of these."""
    first = examples.order_by("at", "pk").values("pk")[:KEPT_FIRST]
    latest = examples.order_by("-at", "-pk").values("pk")[:KEPT_LATEST]
    kept = [*first.values_list("pk", flat=True), *latest.values_list("pk", flat=True)]
    examples.exclude(pk__in=kept).delete()


def _servers_at(addresses: Iterable[str]) -> dict[tuple[UUID, str], int]:
    """The newest server of each release at each of these addresses, by either of its ports."""
    found: dict[tuple[UUID, str], int] = {}
    places = [one.rpartition(":") for one in addresses if one]
    ports = {int(port) for _, _, port in places}
    about = Q(http_port__in=ports) | Q(grpc_port__in=ports)
    for server in Server.objects.filter(about).select_related("deployment").order_by("pk"):
        for port in (server.http_port, server.grpc_port):
            found[server.deployment.release_id, f"{server.host}:{port}"] = server.pk
    return found
