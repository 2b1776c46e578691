"""The start configuration of a gateway: its name, its control planes, and how it counts. The rest comes over ADS."""

from __future__ import annotations

from typing import Any

from serving.core.buckets import EDGES_US, SIZE_EDGES

#: The control plane may be busy for a while without being dead.
KEEPALIVE = {"interval": "5s", "timeout": "10s"}
#: Histograms are merged this often; a reading is never older.
FLUSH_S = 0.1
#: No attempt and no request lasts longer than this.
ANY_MS = 1e9
#: All other stats are switched off: a thousand models would make every reading slow.
KEPT_STATS = (
    "sli.",
    "server.",
    "cluster_manager.",
    "listener_manager.",
    "control_plane.",
    "http.gateway.downstream_cx_active",
)


def bootstrap(node_name: str, xds_address: str, admin_port: int) -> dict[str, Any]:
    """JSON for `envoy -c`. `xds_address` is host:port, or several with commas between them.

    Several gateways on one machine need `--disable-hot-restart` or a `--base-id` each.
    """
    return {
        "node": {"id": node_name, "cluster": "sluicegate"},
        "admin": {"address": _address(f"127.0.0.1:{admin_port}")},
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
        "static_resources": {"clusters": [_ads_cluster(xds_address)]},
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


def _address(host_port: str) -> dict[str, Any]:
    host, _, port = host_port.rpartition(":")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}


def _ads_cluster(xds_address: str) -> dict[str, Any]:
    hosts = [{"endpoint": {"address": _address(one.strip())}} for one in xds_address.split(",")]
    return {
        "name": "ads",
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": "ads", "endpoints": [{"lb_endpoints": hosts}]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {"connection_keepalive": KEEPALIVE}},
            }
        },
    }
