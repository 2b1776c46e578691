"""The part of a gateway that gives its own answers over gRPC, inside Envoy and without a socket.

Envoy's direct responses have no trailers, and a gRPC message needs them. So the routes of such calls lead to an internal
listener. It passes the call on as plain HTTP to a second one, which answers with the bytes that the route names in
`ANSWER_HEADER`, in hexadecimal; on the way back the first one adds the gRPC frame and the trailers. Requests to models
never come here. It belongs to the start configuration, so that it answers also while no control plane is there.
"""

from __future__ import annotations

from typing import Any

ANSWERS_CLUSTER = "own_answers"
ANSWER_HEADER = "x-sluicegate-answer"
_PLAIN = "own_answers_plain"
#: The content type between the two listeners: neither gRPC nor text.
_PROTOBUF = "application/x-protobuf"
_HTTP = "type.googleapis.com/envoy.extensions.filters.http"
_NETWORK = "type.googleapis.com/envoy.extensions.filters.network"
_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_ANSWER_LUA = f"""
function envoy_on_request(handle)
  local told = handle:headers():get("{ANSWER_HEADER}") or ""
  local message = string.gsub(told, "%x%x", function(code) return string.char(tonumber(code, 16)) end)
  handle:respond({{[":status"] = "200", ["content-type"] = "{_PROTOBUF}"}}, message)
end
"""
#: What a bootstrap needs beside the listeners and clusters for a listener that has no address.
INTERNAL_LISTENERS = {
    "name": "envoy.bootstrap.internal_listener",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
    },
}


def own_answer_clusters() -> list[dict[str, Any]]:
    return [_cluster(ANSWERS_CLUSTER, "http2_protocol_options"), _cluster(_PLAIN, "http_protocol_options")]


def own_answer_listeners() -> list[dict[str, Any]]:
    bridge = {
        "name": "envoy.filters.http.grpc_http1_reverse_bridge",
        "typed_config": {
            "@type": f"{_HTTP}.grpc_http1_reverse_bridge.v3.FilterConfig",
            "content_type": _PROTOBUF,
            "withhold_grpc_frames": True,
        },
    }
    answer = {
        "name": "envoy.filters.http.lua",
        "typed_config": {"@type": f"{_HTTP}.lua.v3.Lua", "default_source_code": {"inline_string": _ANSWER_LUA}},
    }
    return [_listener(ANSWERS_CLUSTER, bridge), _listener(_PLAIN, answer)]


def _cluster(name: str, protocol: str) -> dict[str, Any]:
    address = {"envoy_internal_address": {"server_listener_name": name}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
        "typed_extension_protocol_options": {
            _OPTIONS: {"@type": f"type.googleapis.com/{_OPTIONS}", "explicit_http_config": {protocol: {}}}
        },
    }


def _listener(name: str, first: dict[str, Any]) -> dict[str, Any]:
    router = {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{_HTTP}.router.v3.Router"}}
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": _PLAIN, "timeout": "5s"}}]
    manager = {
        "@type": f"{_NETWORK}.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "route_config": {"virtual_hosts": [{"name": name, "domains": ["*"], "routes": routes}]},
        "http_filters": [first, router],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {"name": name, "internal_listener": {}, "filter_chains": [{"filters": filters}]}
