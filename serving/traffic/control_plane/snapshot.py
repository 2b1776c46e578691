"""Everything that the gateways of one environment should have, as resources, compiled from its routing table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from serving.traffic.control_plane.clusters import PROBER_CLUSTER, clusters, endpoints
from serving.traffic.control_plane.listener import listener
from serving.traffic.control_plane.protos import CLUSTER, ENDPOINTS, LISTENER, SCOPE, Resource, resource
from serving.traffic.control_plane.request_guard import UNKNOWN_MODEL
from serving.traffic.control_plane.unknown_model import UNKNOWN, unknown_model_vhost
from serving.traffic.control_plane.virtual_hosts import scope, vhost, vhost_name
from serving.traffic.core.routes import ModelRoute, RoutingTable

#: A stream that is no more than so many snapshots behind is told what changed; a later one compares for itself.
MOST_STEPS = 50


@dataclass(frozen=True)
class CompiledModel:
    """One model's resources by name, and the route they were made from."""

    route: ModelRoute
    clusters: Mapping[str, Resource]
    endpoints: Mapping[str, Resource]
    scope: Resource
    earlier: CompiledModel | None = field(
        default=None, repr=False, compare=False
    )  # what it was before, of which some may come again

    @cached_property
    def versions(self) -> Mapping[str, Mapping[str, str]]:
        """By type, of clusters and of endpoints, by their names: to compare with what a gateway has."""
        return {
            type_url: {name: one.version for name, one in self.of(type_url).items()}
            for type_url in (CLUSTER, ENDPOINTS)
        }

    def of(self, type_url: str) -> Mapping[str, Resource]:
        """Its resources of one type, by name."""
        return {CLUSTER: self.clusters, ENDPOINTS: self.endpoints, SCOPE: {self.scope.name: self.scope}}[type_url]


@dataclass(frozen=True)
class Step:
    """What one snapshot has otherwise than the one before it, of which `before` is the mark. `models`: new ones and changed ones."""

    before: object
    models: frozenset[str] = frozenset()
    lost_models: frozenset[str] = frozenset()
    lost_clusters: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Snapshot:
    """`models` by the name of their virtual host; `owners`: by a cluster's name, that of the one model that has it; `unknown`: the
    routes of requests to no model that there is. `steps` lead here, the last one comes last; a snapshot is known by its `mark`, so that
    none keeps those before it.
    """

    table: RoutingTable
    models: Mapping[str, CompiledModel]
    clusters: Mapping[str, Resource]
    endpoints: Mapping[str, Resource]
    owners: Mapping[str, str]
    unknown: Resource
    steps: tuple[Step, ...] = ()
    mark: object = field(default_factory=object, compare=False)

    @cached_property
    def kept(self) -> frozenset[str]:
        """The names of virtual hosts that gateways keep as they have them."""
        return frozenset(vhost_name(model) for model in self.table.unknown)

    def keeps(self, cluster: str) -> bool:
        """Whether gateways keep the cluster, which may be of a model that nobody could make a route of."""
        return cluster.startswith(tuple(f"{model}_" for model in self.table.unknown))

    def since(self, last: Snapshot) -> Step | None:
        """All that has changed since `last`; None where that is too long ago to be known."""
        if self.mark is last.mark:
            return Step(self.mark)
        models, lost_models, lost_clusters = set[str](), set[str](), set[str]()
        for step in reversed(self.steps):
            models |= step.models
            lost_models |= step.lost_models
            lost_clusters |= step.lost_clusters
            if step.before is last.mark:
                found = (frozenset(models & self.models.keys()), frozenset(lost_models), frozenset(lost_clusters))
                return Step(step.before, *found)
        return None


def compile_table(table: RoutingTable, last: Snapshot | None = None) -> Snapshot:
    """The snapshot of a table. Models that did not change since `last` are taken over as they are."""
    same_rules = last is not None and last.table.forced_key == table.forced_key
    models: dict[str, CompiledModel] = {}
    for route in table.models:
        name = vhost_name(route.model)
        before = last.models.get(name) if last is not None else None
        is_same = same_rules and before is not None and (before.route is route or before.route == route)
        models[name] = before if before is not None and is_same else _compile(route, table.forced_key, before)
    new = {name: one for name, one in models.items() if last is None or last.models.get(name) is not one}
    if last is not None and _has_same_names(new, models, last):
        clusters = {**last.clusters, **{name: one for model in new.values() for name, one in model.clusters.items()}}
        endpoints = {**last.endpoints, **{name: one for model in new.values() for name, one in model.endpoints.items()}}
        owners = last.owners
    else:
        clusters = {name: one for model in models.values() for name, one in model.clusters.items()}
        endpoints = {name: one for model in models.values() for name, one in model.endpoints.items()}
        owners = {name: host for host, one in models.items() for name in one.clusters if name != PROBER_CLUSTER}
    steps: tuple[Step, ...] = ()
    if last is not None:
        kept = frozenset(vhost_name(model) for model in table.unknown)
        lost_models = (last.models.keys() | last.kept) - models.keys() - kept
        lost = (frozenset(lost_models), frozenset(last.clusters.keys() - clusters.keys()))
        steps = (*last.steps[1 - MOST_STEPS :], Step(last.mark, frozenset(new), *lost))
    unknown = last.unknown if last is not None else _unknown()
    return Snapshot(table, models, clusters, endpoints, owners, unknown, steps)


def _has_same_names(new: Mapping[str, CompiledModel], models: Mapping[str, CompiledModel], last: Snapshot) -> bool:
    """Whether there are the same models, clusters and endpoints as before, though some of them changed."""
    return len(models) == len(last.models) and all(
        (before := last.models.get(name)) is not None
        and before.clusters.keys() == one.clusters.keys()
        and before.endpoints.keys() == one.endpoints.keys()
        for name, one in new.items()
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


def _compile(route: ModelRoute, forced_key: str, last: CompiledModel | None) -> CompiledModel:
    """With the very resources of `last`, or of the one before it, that are so again: most, where a replica goes, and where it comes."""
    had = [one for one in (last, last.earlier if last is not None else None) if one is not None]

    def made(type_url: str, bodies: Mapping[str, dict[str, Any]]) -> dict[str, Resource]:
        before = [one.of(type_url) for one in had]
        return {
            name: resource(type_url, name, body, [of[name] for of in before if name in of])
            for name, body in bodies.items()
        }

    host = vhost_name(route.model)
    return CompiledModel(
        route=route,
        clusters=made(CLUSTER, clusters(route, allows_forced=bool(forced_key))),
        endpoints=made(ENDPOINTS, endpoints(route, allows_forced=bool(forced_key))),
        scope=made(SCOPE, {host: scope(route.model, vhost(route, forced_key=forced_key))})[host],
        earlier=replace(last, earlier=None) if last is not None else None,
    )


def _unknown() -> Resource:
    return resource(SCOPE, UNKNOWN, scope(UNKNOWN_MODEL, unknown_model_vhost()))
