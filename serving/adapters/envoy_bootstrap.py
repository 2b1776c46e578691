"""The start configuration of a gateway: its name, its control planes, and how it counts. The rest comes over ADS."""

from __future__ import annotations

from typing import Any

from serving.adapters import envoy_tls
from serving.core.addresses import Address, TlsFiles
from serving.core.buckets import EDGES_US, SIZE_EDGES

#: The control plane may be busy for a while without being dead.
KEEPALIVE = {"interval": "5s", "timeout": "10s"}
#: Histograms are merged this often; a reading is never older.
FLUSH_S = 0.1
#: No attempt and no request lasts longer than this.
ANY_MS = 1e9
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


def bootstrap(
    node_name: str, xds_address: str, admin_address: str, tls: TlsFiles | None = None, counters_address: str = ""
) -> dict[str, Any]:
    """JSON for `envoy -c`. Addresses are host:port or unix:/path; of control planes there may be several, with commas between them.

    With `tls`, files on the gateway's machine, the control plane must prove who it is, and the gateway does; then its counters can be
    read by the control plane's machines at `counters_address`. Several gateways on one machine need `--disable-hot-restart` or a
    `--base-id` each. Raises ValueError for an address that is none, and for counters without `tls`.
    """
    admin, static = Address.at(admin_address), {"clusters": [_ads_cluster(xds_address, tls)]}
    if counters_address:
        if tls is None:
            raise ValueError("counters are read by other machines only where both sides show a certificate")
        static["clusters"].append(_admin_cluster(admin))
        static["listeners"] = [_counters_listener(Address.at(counters_address), tls)]
    return {
        "node": {"id": node_name, "cluster": "sluicegate"},
        "admin": {"address": _admin(admin)},
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
        "stats_config": {
            "stats_matcher": {"inclusion_list": {"patterns": [{"prefix": prefix} for prefix in KEPT_STATS]}},
            "histogram_bucket_settings": [
                # Whole milliseconds go in and a bucket holds what is below its edge: for whole edges that is exact.
                {"match": {"prefix": "sli.latency"}, "buckets": [*(edge / 1000 for edge in EDGES_US), ANY_MS]},
                {"match": {"prefix": "sli.size"}, "buckets": list(SIZE_EDGES)},
                {"match": {"prefix": "sli."}, "buckets": [ANY_MS]},  # only their counts are read
            ],
        },
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
    return {"name": "counters", "address": address.to_envoy(), "filter_chains": [chain]}
