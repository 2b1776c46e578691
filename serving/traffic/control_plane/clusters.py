"""Clusters and their endpoints: one per release and protocol, and for a candidate those that fall back to stable.

A model with classes of requests has these for each class: Envoy counts what is in flight by cluster, and a class has places of its own.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from registry.core.envelope import LARGEST_REQUEST_BYTES
from serving.traffic.core.outcomes import SPARE, Refused
from serving.traffic.core.request_classes import Pool
from serving.traffic.core.routes import Arm, ModelRoute, Prober, class_cluster, release_clusters

#: How the names of clusters of forced requests end.
FORCED = "_forced"
#: Envoy's overprovisioning factor, in percent, with which one healthy server of stable's gets all of stable's share.
ANY_SERVER = 100_000
#: Seconds between two checks of whether a server of stable's accepts connections, while there is a candidate.
PORT_CHECK_S = 0.05
#: Seconds within which a second attempt of stable's share starts at random: mostly after the check saw the closed port.
NOT_ACCEPTED_S = 5 * PORT_CHECK_S
#: The namespace of Sluicegate's own metadata in xDS messages.
NAMESPACE = "sluicegate"
#: How long a server may take to accept a connection.
CONNECT_TIMEOUT_S = 1.0
#: Of what no bound of a release's own holds: connections, streams, and what a broken candidate hands back at once.
MAX_CONCURRENT = 4096
#: Bodies up to this size can be read, sent again to stable, and mirrored; a model may take less.
MAX_BODY_BYTES = LARGEST_REQUEST_BYTES
#: A candidate's cluster takes so many more than the split sends it: as many workers of a gateway may see its last place at once.
AT_ONCE = 32
#: Requests that may be tried anew on stable at once, however few are in flight there.
LEAST_RETRIES = 5
#: One second attempt at a time for so many requests that stable bears: a fifth, as stable's own retry budget has it.
RETRIED_PER_PLACE = 5
#: What shed a first attempt (`outcomes.Refused`): metadata of the request, or of the cluster of `full_name`.
SHED = "shed"
#: Never the name of a release's cluster.
PROBER_CLUSTER = "prober"
#: Copies on their way to the prober at once; what comes on top is not copied.
MAX_MIRRORED = 16
#: The prober takes a copy at once and works on it later; if it does not, it is frozen and the copy is dropped.
MIRROR_TIMEOUT_S = 0.5


def cluster_name(model: str, arm: Arm, protocol: str, pool: str = "") -> str:
    """As `release_clusters` and `class_cluster` have it."""
    return class_cluster(release_clusters(model, arm.digest)[protocol], pool)


def entry_name(route: ModelRoute, arm: Arm, protocol: str, pool: str = "") -> str:
    """The cluster that the split sends to for `arm`: the candidate's falls back to stable."""
    name = cluster_name(route.model, arm, protocol, pool)
    return f"{name}_or_{route.stable.digest12}" if arm is route.candidate else name


def full_name(route: ModelRoute, candidate: Arm, protocol: str, pool: str = "") -> str:
    """The cluster that the split sends to in place of a candidate that is at its bound: stable, for the candidate's account."""
    return f"{cluster_name(route.model, candidate, protocol, pool)}_full_or_{route.stable.digest12}"


def rest_name(route: ModelRoute, protocol: str, pool: str = "") -> str:
    """Name of the cluster of stable's share: stable's own, or while the candidate has traffic, one that falls back to it."""
    if route.candidate is not None and route.uses_spare:
        return _backed_name(route, route.candidate, protocol, pool)
    return cluster_name(route.model, route.stable, protocol, pool)


def _backed_name(route: ModelRoute, candidate: Arm, protocol: str, pool: str = "") -> str:
    return f"{cluster_name(route.model, route.stable, protocol, pool)}_or_{candidate.digest12}"


def _again_name(route: ModelRoute, protocol: str, pool: str = "") -> str:
    """Name of the cluster of stable's servers for second attempts. The gateway checks their ports."""
    return f"{cluster_name(route.model, route.stable, protocol, pool)}_again"


def _spare_name(route: ModelRoute, candidate: Arm, protocol: str, pool: str = "") -> str:
    """Name of the cluster of the candidate's servers in stable's place. Attempts there count for no release."""
    return f"{cluster_name(route.model, candidate, protocol, pool)}_{SPARE}"


def stream_entry_name(route: ModelRoute, arm: Arm, protocol: str) -> str:
    """The cluster that the split sends streams to. A candidate's are on a cluster of their own, for who asks whether it has room
    for a request is told of everything that is in flight on it.
    """
    if arm is not route.candidate:
        return rest_name(route, protocol)
    return f"{_streams_name(route, arm, protocol)}_or_{route.stable.digest12}"


def _streams_name(route: ModelRoute, arm: Arm, protocol: str) -> str:
    name = cluster_name(route.model, arm, protocol)
    return f"{name}_streams" if arm is route.candidate else name


def forced_name(model: str, arm: Arm, protocol: str) -> str:
    """The cluster of the requests that force a release of the split: it has one place."""
    return f"{release_clusters(model, arm.digest)[protocol]}{FORCED}"


def metadata(route: ModelRoute, arm: Arm, **more: str) -> dict[str, Any]:
    """Which model and release this is: read by the access log and by the response header."""
    about = {"model": route.model, "release": arm.name, "digest": arm.digest}
    return {"filter_metadata": {NAMESPACE: {**about, **more}}}


def clusters(route: ModelRoute, *, allows_forced: bool = False) -> dict[str, dict[str, Any]]:
    """Every cluster of one model, by name."""
    found: dict[str, dict[str, Any]] = {}
    for protocol, pool in product(route.calls.protocols, route.pools):
        for arm in route.arms:
            name = cluster_name(route.model, arm, protocol, pool.name)
            found[name] = _release_cluster(name, route, arm, protocol, pool)
        if route.candidate is not None:
            found |= _candidate_clusters(route, route.candidate, protocol, pool)
    for protocol, (arm, _) in product(route.calls.protocols, route.split if allows_forced else ()):
        name = forced_name(route.model, arm, protocol)
        one = _release_cluster(name, route, arm, protocol, route.pools[0])
        found[name] = {**one, "circuit_breakers": {"thresholds": _thresholds(1)[:1]}}
    if route.is_mirrored and route.prober is not None:
        found[PROBER_CLUSTER] = _prober_cluster(route.prober)
    return found


def _candidate_clusters(route: ModelRoute, candidate: Arm, protocol: str, pool: Pool) -> dict[str, dict[str, Any]]:
    """Beside its own. Streams are of no class."""
    own, stable = (cluster_name(route.model, arm, protocol, pool.name) for arm in (candidate, route.stable))
    found: dict[str, dict[str, Any]] = {}
    members: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
        entry_name(route, candidate, protocol, pool.name): ((own, stable), {}),
        full_name(route, candidate, protocol, pool.name): ((stable,), {SHED: Refused.BY_GATEWAY.value}),
    }
    if not pool.name:
        streams = _streams_name(route, candidate, protocol)
        found[streams] = _release_cluster(streams, route, candidate, protocol, pool)
        members[stream_entry_name(route, candidate, protocol)] = ((streams, stable), {})
    for name, (of, room) in members.items():
        found[name] = _fallback_cluster(name, of, metadata(route, candidate, **room))
    return found | (_spare_clusters(route, candidate, protocol, pool) if route.has_spare else {})


def _spare_clusters(route: ModelRoute, candidate: Arm, protocol: str, pool: Pool) -> dict[str, dict[str, Any]]:
    """The cluster of stable's share, and its two fallbacks: stable's servers with open ports, then the candidate's.

    They exist for as long as the candidate does, so a new weight is one write of routes. Stable's own cluster stays as it is without a
    candidate: Envoy would make a changed one anew, with all its connections and bounds.
    A second attempt prefers a cluster that the first one did not use, so it meets the check of the ports. Retries are bounded, so that
    they do not double the load of a server in trouble.
    """
    own = cluster_name(route.model, route.stable, protocol, pool.name)
    again, spare = _again_name(route, protocol, pool.name), _spare_name(route, candidate, protocol, pool.name)
    name = _backed_name(route, candidate, protocol, pool.name)
    places = route.in_stables_place(candidate, pool.share_pct)
    retries = [
        {"priority": "DEFAULT", "max_retries": max(LEAST_RETRIES, places)},
        {"priority": "HIGH", "max_retries": MAX_CONCURRENT},
    ]
    checked = _release_cluster(again, route, route.stable, protocol, pool) | _port_checks()
    del checked["outlier_detection"]
    retried = max(LEAST_RETRIES, route.in_flight(route.stable, pool.share_pct) // RETRIED_PER_PLACE)
    checked["circuit_breakers"] = {"thresholds": _thresholds(retried)}
    servers = _release_cluster(spare, route, candidate, protocol, pool)
    rest = _fallback_cluster(name, (own, again, spare), metadata(route, route.stable))
    return {
        again: checked,
        spare: servers | {"circuit_breakers": {"thresholds": _thresholds(places)}},
        name: rest | {"circuit_breakers": {"thresholds": retries}},
    }


def endpoints(route: ModelRoute, *, allows_forced: bool = False) -> dict[str, dict[str, Any]]:
    """The endpoints of every cluster of one model that has its own, by the cluster's name."""
    found = {}
    for protocol, pool in product(route.calls.protocols, route.pools):
        for arm in route.arms:
            hosts = _hosts(route, arm, protocol)
            streams = set() if pool.name else {_streams_name(route, arm, protocol)}
            is_forced = allows_forced and not pool.name and arm not in route.others
            forced = {forced_name(route.model, arm, protocol)} if is_forced else set()
            for name in {cluster_name(route.model, arm, protocol, pool.name)} | streams | forced:
                found[name] = _assigned(name, hosts)
        if route.candidate is not None and route.has_spare:
            found |= _spare_endpoints(route, route.candidate, protocol, pool.name)
    return found


def _spare_endpoints(route: ModelRoute, candidate: Arm, protocol: str, pool: str) -> dict[str, dict[str, Any]]:
    """Those of `_spare_clusters`, and of stable's own. Any server of stable's that is well gets all of stable's share: else Envoy would
    give a part of it to the next cluster as soon as a third of the servers is away.
    """
    whole = {"policy": {"overprovisioning_factor": ANY_SERVER}}
    stables = _hosts(route, route.stable, protocol)
    spare = _spare_name(route, candidate, protocol, pool)
    names = (cluster_name(route.model, route.stable, protocol, pool), _again_name(route, protocol, pool))
    found = {name: _assigned(name, stables) | whole for name in names}
    return found | {spare: _assigned(spare, _hosts(route, replace(candidate, digest=SPARE), protocol))}


def _assigned(cluster: str, hosts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"cluster_name": cluster, "endpoints": [{"locality": {}, "lb_endpoints": hosts}] if hosts else []}


def _hosts(route: ModelRoute, arm: Arm, protocol: str) -> list[dict[str, Any]]:
    about = metadata(route, arm)
    return [
        {
            "endpoint": {"address": _address(e.host, e.http_port if protocol == "http" else e.grpc_port)},
            "metadata": about,
        }
        for e in arm.endpoints
    ]


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _prober_cluster(prober: Prober) -> dict[str, Any]:
    """One for all models, over HTTP/1.1 for both protocols: the answers are discarded, so losing gRPC's trailers does no harm.

    Its hosts carry no metadata: attempts there belong to no release. A prober that is frozen, gone or slow must cost users
    nothing: few copies at once, let go soon, and room for the largest body, because a copy that has to wait for room makes
    the user's own request wait.
    """
    return {
        "name": PROBER_CLUSTER,
        "type": "STATIC" if prober.address.is_ip else "STRICT_DNS",
        "wait_for_warm_on_init": False,
        "connect_timeout": "0.25s",
        "per_connection_buffer_limit_bytes": MAX_BODY_BYTES,
        "load_assignment": {
            "cluster_name": PROBER_CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": prober.address.to_envoy()}}]}],
        },
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": MAX_MIRRORED,
                    "max_pending_requests": MAX_MIRRORED,
                    "max_requests": MAX_MIRRORED,
                    "max_retries": 0,
                }
            ]
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "common_http_protocol_options": {"max_stream_duration": f"{MIRROR_TIMEOUT_S}s"},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
    }


def _release_cluster(name: str, route: ModelRoute, arm: Arm, protocol: str, pool: Pool) -> dict[str, Any]:
    explicit: dict[str, Any] = {"http_protocol_options": {}} if protocol == "http" else {"http2_protocol_options": {}}
    return {
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "5s"}},
        "connect_timeout": f"{CONNECT_TIMEOUT_S:g}s",
        "metadata": metadata(route, arm),
        "circuit_breakers": {
            "thresholds": _thresholds(route.in_flight(arm, pool.share_pct) + AT_ONCE * (arm is route.candidate))
        },
        "outlier_detection": _outlier_detection(is_backed=arm is route.candidate),
        # Else a server that is set aside within a second of another, as the last of a broken release is, goes on being asked for
        # that second: Envoy hands on such changes once a second at most.
        "common_lb_config": {"update_merge_window": "0s"},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": explicit,
            }
        },
    }


def _thresholds(in_flight: int) -> list[dict[str, Any]]:
    """At most `in_flight` requests at once on one release over one protocol; one more is refused in about a millisecond
    (flag UO), and Envoy never tries a refused one elsewhere; so the split asks before whether a candidate has room (`overflow`).

    What waits for a connection is bounded alike, so that a burst on a fresh cluster opens no more connections than it may
    use. Connections are not: each worker keeps idle ones of its own, which would bar the others. Routes with
    `priority: HIGH` have a pool of their own: a stream that stays open for an hour must not hold a request's place.
    """
    # Stable retried on stable must not double the load of a server that is in trouble.
    retries = {"budget_percent": {"value": 20.0}, "min_retry_concurrency": LEAST_RETRIES}
    return [
        {
            "priority": priority,
            "max_connections": MAX_CONCURRENT,
            "max_pending_requests": most,
            "max_requests": most,
            "retry_budget": retries,
        }
        for priority, most in (("DEFAULT", in_flight), ("HIGH", MAX_CONCURRENT))
    ]


def _port_checks() -> dict[str, Any]:
    """Whether a server accepts connections. One that answers wrongly or late is not gone: its requests stay with stable, and stay
    stable's evidence.
    """
    every = {"interval": f"{PORT_CHECK_S}s", "no_traffic_interval": f"{PORT_CHECK_S}s"}
    check = {"timeout": f"{CONNECT_TIMEOUT_S:g}s", **every, "unhealthy_threshold": 1, "healthy_threshold": 1}
    return {"health_checks": [{**check, "tcp_health_check": {}}], "ignore_health_on_host_removal": True}


def _outlier_detection(*, is_backed: bool) -> dict[str, Any]:
    """Sets aside, for a few seconds, a server that refused, reset, timed out or was unavailable five times in a row.

    INTERNAL and 500 are never held against it: Triton says so to a caller's bad input, and one bad caller must not put
    a good server out. `is_backed`: stable answers if all are set aside. Else the last server stays, so that its requests never go to a
    candidate that stands in for stable.

    Local and external origins are not told apart: if they were, each new connection to a server that hangs would count
    as a success, and it would never be set aside.
    """
    return {
        "consecutive_gateway_failure": 5,
        "enforcing_consecutive_gateway_failure": 100,
        "enforcing_consecutive_5xx": 0,
        "enforcing_success_rate": 0,
        "interval": "0.5s",
        "base_ejection_time": "3s",
        "max_ejection_time": "10s",
        "max_ejection_percent": 100 if is_backed else 99,
    }


def _fallback_cluster(name: str, members: tuple[str, ...], about: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "connect_timeout": f"{CONNECT_TIMEOUT_S:g}s",
        "lb_policy": "CLUSTER_PROVIDED",
        "metadata": about,
        "cluster_type": {
            "name": "envoy.clusters.aggregate",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig",
                "clusters": list(members),
            },
        },
        # The budget cannot be a share of what is in flight: that is counted on the clusters behind this one. What a broken
        # candidate hands back is bounded by its own bound, and on stable by stable's. Streams are of the other priority, where
        # Envoy lets three be handed back at once if nothing is said.
        "circuit_breakers": {
            "thresholds": [{"priority": priority, "max_retries": MAX_CONCURRENT} for priority in ("DEFAULT", "HIGH")]
        },
    }
