"""What the control plane reads from and writes to the database. Blocking: call it in a thread."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q, QuerySet

from accounts.core.access import Actor
from registry.models import Release
from registry.queries import whole_releases
from serving.environments.core.lifecycle import ReplicaState
from serving.environments.core.sleep_lifecycle import SleepState
from serving.models import Gateway, RequestExample, Route, Server, slot_of
from serving.traffic.actions.gateways import record_refused_stream
from serving.traffic.adapters.forced_key import forced_key
from serving.traffic.adapters.mirror_secret import mirror_secret
from serving.traffic.control_plane.model_settings import (
    classes_of,
    is_idempotent,
    retries_resets,
    slow_ms_of,
    tenants_of,
)
from serving.traffic.control_plane.request_log import LoggedRequest
from serving.traffic.control_plane.rows import (
    EnvironmentRow,
    GatewayRow,
    ModelRows,
    PreparingRow,
    RouteRow,
    Servers,
    read_rows,
)
from serving.traffic.control_plane.server import GatewayIdentity
from serving.traffic.core.admission import Proof
from serving.traffic.core.asleep import Asleep
from serving.traffic.core.bounds import RequestBounds, bounds_of
from serving.traffic.core.routes import (
    Arm,
    ModelRoute,
    Prober,
    RouteProblem,
    RoutingTable,
    ServerAddress,
)
from serving.traffic.queries.time_limits import limits_of

log = logging.getLogger(__name__)

#: What a model's route depends on beside what is said of it: whether releases may be forced, how many gateways share its servers, and
#: where the prober is.
_Premises = tuple[bool, int, str]


@dataclass(frozen=True)
class Made:
    """What came of what was said of one model. Without `premises` it is to be made again, whatever is said."""

    premises: _Premises | None
    route: ModelRoute
    known: Mapping[str, tuple[ServerAddress, ...]]
    releases: Mapping[str, _Sealed]


@dataclass(frozen=True)
class Loaded:
    """One consistent reading. `known` maps a digest to servers that live but do not serve, by environment; `made` has what came of
    each model's rows, for the next reading. `problems`, by environment: routes that could not be made, in whose place there is the last one
    that could, if there was one. `read_at`, by environment: what was committed by then is in it.
    `preparing`: releases of models without a route, by id.
    """

    tables: dict[str, RoutingTable]
    known: dict[str, dict[str, tuple[ServerAddress, ...]]]
    gateways: dict[str, GatewayIdentity]
    made: Mapping[ModelRows, Made] = field(default_factory=dict, repr=False)
    problems: Mapping[str, tuple[RouteProblem, ...]] = field(default_factory=dict)
    read_at: Mapping[str, datetime] = field(default_factory=dict)
    preparing: Mapping[str, _Sealed] = field(default_factory=dict, repr=False)


def load(last: Loaded | None = None) -> Loaded:
    """All routed environments, read whole. Raises django.db.Error.

    Where the database says of a model what it said in `last`, to the letter, its route is taken from there: it is made from that, from
    `premises` that are compared too, and from sealed releases, which never change.
    """
    rows = read_rows()
    about = Counter(one.environment_id for one in rows.gateways if one.is_about)
    premises = {
        one.pk: (one.allows_forced, max(about[one.pk], 1), settings.PROBER_ADDRESS) for one in rows.environments
    }
    said = [one for one in rows.said if one.environment_id in premises]
    made, problems = _made(said, premises, last.made if last else {})
    models: defaultdict[int, list[ModelRoute]] = defaultdict(list)
    known: defaultdict[int, dict[str, tuple[ServerAddress, ...]]] = defaultdict(dict)
    for where, one in ((said.environment_id, one) for said, one in made.items()):
        models[where].append(one.route)
        if one.known:
            known[where].update(one.known)
    preparing = _sealed({new.release_id for new in rows.preparing}, [last.preparing] if last else [])
    for new in rows.preparing:
        release = preparing.get(new.release_id)
        if release and new.environment_id in premises:
            models[new.environment_id].append(_preparing(new, release))
    tables = {one.slug: _table(one, models[one.pk], problems[one.pk]) for one in rows.environments}
    return Loaded(
        tables,
        {one.slug: known[one.pk] for one in rows.environments},
        {one.name: _identity(one) for one in rows.gateways},
        made,
        {one.slug: tuple(problems[one.pk]) for one in rows.environments},
        {one.slug: datetime.fromisoformat(one.read_at) for one in rows.environments},
        preparing,
    )


def _preparing(row: PreparingRow, release: _Sealed) -> ModelRoute:
    of = release.bounds or bounds_of("")
    arm = Arm(
        release.name,
        release.digest,
        max_request_bytes=of.max_request_bytes,
        has_streams=of.has_streams,
        max_batch=of.max_batch,
        kind=of.kind,
    )
    return ModelRoute.preparing(row.model, row.model_id, arm, ReplicaState(row.state))


def _table(environment: EnvironmentRow, models: list[ModelRoute], problems: list[RouteProblem]) -> RoutingTable:
    unknown = {one.model for one in problems} - {one.model for one in models}
    return RoutingTable(
        environment.slug,
        environment.generation,
        forced_key(environment.slug, environment.forced_key_number) if environment.allows_forced else "",
        tuple(models),
        frozenset(unknown),
    )


def _made(
    every: list[ModelRows], premises: Mapping[int, _Premises], last: Mapping[ModelRows, Made]
) -> tuple[dict[ModelRows, Made], defaultdict[int, list[RouteProblem]]]:
    """In the order of `every`; and by environment what could not be made, which keeps no other model's route back."""
    found = {said: last.get(said) for said in every}
    new = {
        said: said.read() for said, one in found.items() if one is None or one.premises != premises[said.environment_id]
    }
    named = {pk for row, _ in new.values() for pk in row.arms}
    forced = {pk for said, (_, servers) in new.items() if premises[said.environment_id][0] for pk in servers.ready}
    releases = _sealed(named | forced, [one.releases for one in last.values()]) if new else {}
    problems: defaultdict[int, list[RouteProblem]] = defaultdict(list)
    for said, (row, servers) in new.items():
        try:
            found[said] = _model_route(row, servers, releases, premises[said.environment_id])
        except Exception as error:
            before = next((one for one in last.values() if one.route.route_id == row.pk), None)
            found[said] = replace(before, premises=None) if before is not None else None
            why = f"{row.slug}: no route can be made of generation {row.generation}, gateways keep what they have of it: {error}"
            problems[row.environment_id].append(RouteProblem(row.pk, row.slug, row.generation, why, is_withheld=True))
    return {said: one for said, one in found.items() if one is not None}, problems


class _Sealed(NamedTuple):
    """What gateways are told of a release. `bounds` None: its manifest cannot be read."""

    pk: str
    number: int
    name: str
    digest: str
    bounds: RequestBounds | None


def _sealed(wanted: Set[str], last: Iterable[Mapping[str, _Sealed]]) -> dict[str, _Sealed]:
    """By id; none that could be read in `last` is read again."""
    known = {pk: release for one in last for pk, release in one.items() if pk in wanted}
    found = {pk: release for pk, release in known.items() if release.bounds is not None}
    for one in whole_releases({UUID(pk) for pk in wanted - found.keys()}).values():
        try:
            bounds = bounds_of(one.manifest)
        except Exception:  # somebody wrote into what was sealed: the models that it belongs to tell
            bounds = None
        found[str(one.pk)] = _Sealed(str(one.pk), one.number or 0, one.name, str(one.digest), bounds)
    return found


def _model_route(route: RouteRow, servers: Servers, releases: Mapping[str, _Sealed], premises: _Premises) -> Made:
    """Raises ValueError where the manifest of a release that gets requests cannot be read. One that gets none keeps no rollback back."""
    allows_forced, gateways, prober = premises
    gets_some = {route.stable_id, *((route.candidate_id,) if route.candidate_bp or route.mirror_bp else ())}
    used = {pk: releases[pk] for pk in (*route.arms, *(servers.ready if allows_forced else ()))}
    readable = {pk for pk, one in used.items() if one.bounds is not None or pk in gets_some}

    def arm(release: _Sealed) -> Arm:
        of = release.bounds
        if of is None:
            raise ValueError(f"the manifest of {release.name} cannot be read")
        proof = Proof.from_json(route.proven.get(str(release.pk)))
        limit = of.admission(proof)
        return Arm(
            release.name,
            release.digest,
            servers.serving.get(release.digest, ()),
            limit.in_flight,
            of.max_request_bytes,
            of.has_streams,
            of.max_batch,
            limit.well_within_s,
            of.kind,
        )

    forced = [used[pk] for pk in readable - set(route.arms)]
    made = ModelRoute(
        route_id=route.pk,
        model=route.slug,
        generation=route.generation,
        stable=arm(used[route.stable_id]),
        candidate=arm(used[route.candidate_id]) if route.candidate_id in readable else None,
        candidate_bp=route.candidate_bp,
        others=tuple(arm(one) for one in sorted(forced, key=lambda one: one.number)),
        limits=limits_of(route),
        mirror_bp=route.mirror_bp,
        prober=_prober_at(prober) if route.mirror_bp else None,
        slot=slot_of(route.changes),
        gateways=gateways,
        slow_ms=slow_ms_of(route) if route.candidate_id in readable else None,
        tenants=tenants_of(route),
        classes=classes_of(route),
        is_idempotent=is_idempotent(route),
        retries_resets=retries_resets(route),
        asleep=_asleep(route, bool(servers.serving.get(releases[route.stable_id].digest))),
        refuses_forced=route.refuses_forced,
    )
    return Made(premises if readable == used.keys() else None, made, servers.known, used)


def _asleep(route: RouteRow, is_served: bool) -> Asleep | None:
    """Until a server of stable answers again; what serves still while it falls asleep is being unloaded."""
    if route.sleep is None:
        return None
    state, loads_on_demand, wake_s = route.sleep
    if state == SleepState.WAKING:
        return None if is_served else Asleep(wake_s)
    return Asleep(wake_s if loads_on_demand else None)


@cache
def _prober_at(address: str) -> Prober | None:
    """The settings' prober. An invalid address disables mirroring; traffic goes on. Logged once."""
    try:
        return Prober.at(address, mirror_secret())
    except ValueError as error:
        log.warning("%s; nothing is mirrored", error)
        return None


def _identity(gateway: GatewayRow) -> GatewayIdentity:
    http = urlsplit(gateway.http_url)
    grpc_host, _, grpc_port = gateway.grpc_address.rpartition(":")
    addresses = ((http.hostname or "127.0.0.1", http.port or 80), (grpc_host.strip("[]"), int(grpc_port)))
    where = tuple(dict.fromkeys(addresses))
    trusted = settings.TRUSTED_PROXIES
    return GatewayIdentity(gateway.pk, gateway.name, gateway.environment, where, trusted, gateway.is_drained)


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
    """Upserts, at most one row for each route of a gateway. An older generation never overwrites a newer one, and a repeated word
    keeps its first time. What a gateway has taken, it has taken, whatever it says of that generation later.
    """
    statement = """
        INSERT INTO serving_routeack (gateway_id, route_id, generation, acked_at, error, taken)
        SELECT said.*
          FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::timestamptz[], %s::text[], %s::bigint[])
               AS said (gateway_id, route_id, generation, acked_at, error, taken)
         WHERE EXISTS (SELECT 1 FROM serving_gateway WHERE id = said.gateway_id)
           AND EXISTS (SELECT 1 FROM serving_route WHERE id = said.route_id)
         ORDER BY said.gateway_id, said.route_id  -- two control planes must not wait for each other
        ON CONFLICT (gateway_id, route_id) DO UPDATE
           SET generation = EXCLUDED.generation, acked_at = EXCLUDED.acked_at, error = EXCLUDED.error,
               taken = GREATEST(EXCLUDED.taken, serving_routeack.taken)
         WHERE EXCLUDED.generation > serving_routeack.generation
            OR (EXCLUDED.generation = serving_routeack.generation
                AND (EXCLUDED.error <> serving_routeack.error OR EXCLUDED.taken > serving_routeack.taken))
    """
    said = [
        (
            one.gateway_id,
            one.route_id,
            one.generation,
            one.at,
            one.error,
            one.generation if one.follows or not one.error else 0,
        )
        for one in rows
    ]
    if said:
        with connection.cursor() as cursor:
            cursor.execute(statement, [list(column) for column in zip(*said, strict=True)])


def write_seen(gateway_ids: Iterable[int], at: datetime) -> None:
    Gateway.objects.filter(pk__in=list(gateway_ids)).update(seen_at=at)


def write_follows(follows: Mapping[int, datetime]) -> None:
    """Up to when each of these gateways, by its key, routes by what the database said. It never goes back."""
    for at in set(follows.values()):
        rows = Gateway.objects.filter(pk__in=[pk for pk, one in follows.items() if one == at])
        rows.filter(Q(follows_at=None) | Q(follows_at__lt=at)).update(follows_at=at)


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
    for server in Server.objects.filter(about).select_related("replica").order_by("pk"):
        for port in (server.http_port, server.grpc_port):
            found[server.replica.release_id, f"{server.host}:{port}"] = server.pk
    return found
