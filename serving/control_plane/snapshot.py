"""Everything that the gateways of one environment should have, as resources, compiled from its routing table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serving.control_plane.clusters import PROBER_CLUSTER, clusters, endpoints
from serving.control_plane.listener import listener
from serving.control_plane.protos import CLUSTER, ENDPOINTS, LISTENER, SCOPE, Resource, resource
from serving.control_plane.request_guard import UNKNOWN_MODEL
from serving.control_plane.virtual_hosts import UNKNOWN, scope, unknown_model_vhost, vhost, vhost_name
from serving.core.routes import ModelRoute, RoutingTable


@dataclass(frozen=True)
class CompiledModel:
    """One model's resources by name, and the route they were made from."""

    route: ModelRoute
    clusters: Mapping[str, Resource]
    endpoints: Mapping[str, Resource]
    scope: Resource


@dataclass(frozen=True)
class Snapshot:
    """`models` by the name of their virtual host; `owners`: by a cluster's name, that of the one model that has it; `unknown`: the
    routes of requests to no model that there is.
    """

    table: RoutingTable
    models: Mapping[str, CompiledModel]
    clusters: Mapping[str, Resource]
    endpoints: Mapping[str, Resource]
    owners: Mapping[str, str]
    unknown: Resource


def compile_table(table: RoutingTable, last: Snapshot | None = None) -> Snapshot:
    """The snapshot of a table. Models that did not change since `last` are taken over as they are."""
    same_rules = last is not None and last.table.allows_forced == table.allows_forced
    models: dict[str, CompiledModel] = {}
    for route in table.models:
        name = vhost_name(route.model)
        before = last.models.get(name) if last is not None and same_rules else None
        models[name] = before if before is not None and before.route == route else _compile(route, table.allows_forced)
    return Snapshot(
        table=table,
        models=models,
        clusters={name: one for model in models.values() for name, one in model.clusters.items()},
        endpoints={name: one for model in models.values() for name, one in model.endpoints.items()},
        owners={name: host for host, one in models.items() for name in one.clusters if name != PROBER_CLUSTER},
        unknown=last.unknown if last is not None else _unknown(),
    )


def compile_listeners(
    addresses: tuple[tuple[str, int], ...], trusted: tuple[str, ...] = (), *, is_drained: bool = False
) -> dict[str, Resource]:
    """One listener for each (host, port) of a gateway; HTTP and gRPC may share one. See `listener` for the others."""
    found = {}
    for host, port in dict.fromkeys(addresses):
        name = f"gateway_{port}"
        found[name] = resource(LISTENER, name, listener(name, host, port, trusted, is_drained=is_drained))
    return found


def _compile(route: ModelRoute, allows_forced: bool) -> CompiledModel:
    return CompiledModel(
        route=route,
        clusters={name: resource(CLUSTER, name, body) for name, body in clusters(route).items()},
        endpoints={name: resource(ENDPOINTS, name, body) for name, body in endpoints(route).items()},
        scope=resource(SCOPE, vhost_name(route.model), scope(route.model, vhost(route, allows_forced=allows_forced))),
    )


def _unknown() -> Resource:
    return resource(SCOPE, UNKNOWN, scope(UNKNOWN_MODEL, unknown_model_vhost()))
