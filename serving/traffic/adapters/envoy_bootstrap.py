"""The start configuration of a gateway: its name, its control planes, and how it counts. The rest comes over ADS."""

from __future__ import annotations

from typing import Any

from ledger.adapters.linux_memory import memory_here
from serving.environments.core.addresses import Address, TlsFiles
from serving.traffic.adapters import envoy_tls
from serving.traffic.adapters.envoy_own_answers import INTERNAL_LISTENERS, own_answer_clusters, own_answer_listeners
from serving.traffic.core.buckets import EDGES_US, SIZE_EDGES, TENANT_EDGES_US, TEXT_EDGES
from serving.traffic.core.gateway_setup import LEAST_HEAP_MIB

#: The control plane may be busy for a while without being dead.
KEEPALIVE = {"interval": "5s", "timeout": "10s"}
#: Histograms are merged this often; a reading is never older.
FLUSH_S = 0.1
#: No attempt and no request lasts longer than this.
ANY_MS = 1e9
#: More bytes than any request has, streams too: the bucket that counts all.
ANY_BYTES = 1e15
#: Connections at once, over all of a gateway's own. Each needs a file; Envoy raises its own limit as far as it may.
MOST_CONNECTIONS = 10_000
#: Heap is measured this often; in between, a caller on a fast network may add some hundred megabytes.
OVERLOAD_S = 0.1
#: Fractions of the heap's bound. From the first on, HTTP/1 connections are ended as they send, at random and surely at the second: who
#: sends megabytes is met, who sends a small request hardly ever. Of HTTP/2 the requests that hold most are ended, if more than 1 MiB; and
#: what stands still is waited for the shorter the fuller the heap is. From the second on new requests are answered 503.
ENDS_FROM, SHEDS_FROM = 0.7, 0.95
_LEAST_RESET_POWER = 20
#: How long what stands still is waited for then. A request that its server works on stands still too.
PATIENT_S = 5
_HEAP, _CONNECTIONS = "envoy.resource_monitors.fixed_heap", "envoy.resource_monitors.global_downstream_max_connections"
_MONITORS = "type.googleapis.com/envoy.extensions.resource_monitors"
_NETWORK = "type.googleapis.com/envoy.extensions.filters.network"
#: All other stats are switched off: a thousand models would make every reading slow.
KEPT_STATS = (
    "sli.",
    "server.",
    "cluster_manager.",
    "listener_manager.",
    "control_plane.",
    "http.gateway.downstream_cx_active",
)
#: Gauge of a cluster's requests under way.
ACTIVE = {"suffix": ".upstream_rq_active"}


def heap_of_this_machine() -> int:
    """Bytes that a gateway may hold here: half of the memory, as inference servers live beside it."""
    return max(LEAST_HEAP_MIB << 20, memory_here() // 2)


def bootstrap(
    node_name: str,
    xds_address: str,
    admin_address: str,
    tls: TlsFiles | None = None,
    counters_address: str = "",
    *,
    heap_bytes: int | None = None,
    relay: str = "",
) -> dict[str, Any]:
    """JSON for `envoy -c`. Addresses are host:port or unix:/path; of control planes there may be several, with commas between them.

    With `tls`, files on the gateway's machine, the control plane must prove who it is, and the gateway does; then its counters can be
    read by the control plane's machines at `counters_address`. `heap_bytes`: what this Envoy may hold, `heap_of_this_machine` by default;
    near it requests that hold much are ended, and new ones answered 503. `relay`: the unix:/path of this gateway's relay, which it calls in
    place of the control planes (`serving.traffic.control_plane.relay`). Several gateways on one machine need `--disable-hot-restart` or a
    `--base-id` each. Raises ValueError for an address that is none, and for counters without `tls`.
    """
    admin = Address.at(admin_address)
    static = {
        "clusters": [_ads_cluster(relay or xds_address, None if relay else tls), *own_answer_clusters()],
        "listeners": own_answer_listeners(),
    }
    if counters_address:
        if tls is None:
            raise ValueError("counters are read by other machines only where both sides show a certificate")
        static["clusters"].append(_admin_cluster(admin))
        static["listeners"].append(_counters_listener(Address.at(counters_address), tls))
    return {
        "node": {"id": node_name, "cluster": "sluicegate"},
        "admin": {"address": _admin(admin), "ignore_global_conn_limit": True},
        "bootstrap_extensions": [INTERNAL_LISTENERS],
        "overload_manager": _overload(heap_bytes or heap_of_this_machine()),
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": [
                    {
                        "envoy_grpc": {
                            "cluster_name": "ads",
                            "retry_policy": {"retry_back_off": {"base_interval": "0.25s", "max_interval": "1s"}},
                        }
                    }
                ],
            },
            "cds_config": {"ads": {}, "resource_api_version": "V3"},
            "lds_config": {"ads": {}, "resource_api_version": "V3"},
        },
        "static_resources": static,
        "stats_flush_interval": f"{FLUSH_S}s",
        "stats_config": _stats(),
    }


def _stats() -> dict[str, Any]:
    """What is counted. Whole milliseconds go in and a bucket holds what is below its edge: for whole edges that is exact."""
    buckets: dict[str, list[float]] = {
        "sli.latency": [*(edge / 1000 for edge in EDGES_US), ANY_MS],
        **{f"sli.{name}": [*(edge / 1000 for edge in EDGES_US), ANY_MS] for name in ("first", "gap", "left")},
        "sli.texts": [0.5, *TEXT_EDGES[1:], ANY_BYTES],  # Envoy takes no edge of 0
        "sli.tenant": [*(edge / 1000 for edge in TENANT_EDGES_US), ANY_MS],
        "sli.class": [*(edge / 1000 for edge in TENANT_EDGES_US), ANY_MS],
        "sli.request": [*SIZE_EDGES, ANY_BYTES],
        "sli.": [ANY_MS],  # of all others only their counts are read
    }
    return {
        "stats_matcher": {"inclusion_list": {"patterns": [*({"prefix": prefix} for prefix in KEPT_STATS), ACTIVE]}},
        "histogram_bucket_settings": [
            {"match": {"prefix": prefix}, "buckets": edges} for prefix, edges in buckets.items()
        ],
    }


def _overload(heap_bytes: int) -> dict[str, Any]:
    """What many connections, or requests that nobody ends, may hold together. Whoever reads counters stands outside of it."""
    heap = {"@type": f"{_MONITORS}.fixed_heap.v3.FixedHeapConfig", "max_heap_size_bytes": str(heap_bytes)}
    connections = {
        "@type": f"{_MONITORS}.downstream_connections.v3.DownstreamConnectionsConfig",
        "max_active_downstream_connections": str(MOST_CONNECTIONS),
    }
    sheds = {"threshold": {"value": SHEDS_FROM}}
    ends = {"scaled": {"scaling_threshold": ENDS_FROM, "saturation_threshold": SHEDS_FROM}}
    timers = [
        {"timer": timer, "min_timeout": f"{PATIENT_S}s"}
        for timer in ("HTTP_DOWNSTREAM_CONNECTION_IDLE", "HTTP_DOWNSTREAM_STREAM_IDLE")
    ]
    scaled = {
        "@type": "type.googleapis.com/envoy.config.overload.v3.ScaleTimersOverloadActionConfig",
        "timer_scale_factors": timers,
    }
    actions: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("reset_high_memory_stream", ends, {}),
        ("reduce_timeouts", ends, {"typed_config": scaled}),
        ("shrink_heap", sheds, {}),
        ("stop_accepting_requests", sheds, {}),
    ]
    return {
        "refresh_interval": f"{OVERLOAD_S}s",
        "resource_monitors": [
            {"name": _HEAP, "typed_config": heap},
            {"name": _CONNECTIONS, "typed_config": connections},
        ],
        "actions": [
            {"name": f"envoy.overload_actions.{name}", "triggers": [{"name": _HEAP, **when}], **more}
            for name, when, more in actions
        ],
        "loadshed_points": [
            {"name": "envoy.load_shed_points.http1_server_abort_dispatch", "triggers": [{"name": _HEAP, **ends}]}
        ],
        "buffer_factory_config": {"minimum_account_to_track_power_of_two": _LEAST_RESET_POWER},
    }


def _admin(address: Address) -> dict[str, Any]:
    """A socket file is for Envoy's own user alone: who reaches the admin interface can stop it and read all that it was told."""
    where = address.to_envoy()
    if address.path:
        where["pipe"]["mode"] = 0o600
    return where


def _ads_cluster(xds_address: str, tls: TlsFiles | None) -> dict[str, Any]:
    addresses = [Address.at(one.strip()) for one in xds_address.split(",")]
    hosts = [{"endpoint": {"address": one.to_envoy()}} for one in addresses]
    return {
        "name": "ads",
        "type": "STATIC" if all(one.path for one in addresses) else "STRICT_DNS",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": "ads", "endpoints": [{"lb_endpoints": hosts}]},
        **({"transport_socket": envoy_tls.to_control_plane(tls)} if tls else {}),
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {"connection_keepalive": KEEPALIVE}},
            }
        },
    }


def _admin_cluster(admin: Address) -> dict[str, Any]:
    hosts = [{"endpoint": {"address": admin.to_envoy()}}]
    return {
        "name": "admin",
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": "admin", "endpoints": [{"lb_endpoints": hosts}]},
    }


def _counters_listener(address: Address, tls: TlsFiles) -> dict[str, Any]:
    """For engines on other machines: the admin interface's counters and when this Envoy started, and nothing else of it."""
    mask = [{"name": "mask", "string_match": {"exact": "last_updated"}}]
    readable: list[dict[str, Any]] = [
        {"path": "/stats"},
        {"path": "/ready"},
        {"path": "/config_dump", "query_parameters": mask},
        {"path": "/clusters", "query_parameters": [{"name": "format", "string_match": {"exact": "json"}}]},
    ]
    method = {"headers": [{"name": ":method", "string_match": {"exact": "GET"}}]}
    routes = [{"match": match | method, "route": {"cluster": "admin"}} for match in readable]
    manager = {
        "@type": f"{_NETWORK}.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "counters",
        "route_config": {"virtual_hosts": [{"name": "counters", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
            }
        ],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    chain = {"transport_socket": envoy_tls.from_control_plane(tls), "filters": filters}
    return {
        "name": "counters",
        "address": address.to_envoy(),
        "filter_chains": [chain],
        "ignore_global_conn_limit": True,
        "bypass_overload_manager": True,
    }
