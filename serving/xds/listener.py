"""The gateway's listener: one port for HTTP/1.1, HTTP/2 and gRPC, the model's name from the request, and the counts."""

from __future__ import annotations

from typing import Any

from serving.xds.clusters import NAMESPACE
from serving.xds.vhosts import MAX_BODY_BYTES, MODEL_HEADER, ROUTE_CONFIG, unknown_model_vhost

#: Every stat of ours begins with this.
STAT_PREFIX = "sli"

#: Fills the model header where the caller did not: from the REST path, from the first field of a gRPC message, else from the
#: authority. `body()` yields until the message is whole, so a stream must name its model itself or by its authority.
MODEL_LUA = """
local header = "%(header)s"

local function from_body(handle)
  local body = handle:body(true)
  local size = body:length()
  if size < 7 then return nil end
  local bytes = body:getBytes(0, math.min(size, 140))
  -- 5 bytes of frame (the first says "compressed"), then field 1, model_name or name, as a short string
  if bytes:byte(1) ~= 0 or bytes:byte(6) ~= 10 or bytes:byte(7) >= 128 or size < 7 + bytes:byte(7) then return nil end
  return bytes:sub(8, 7 + bytes:byte(7))
end

function envoy_on_request(handle)
  local given = handle:headers():get(header)
  if given and given ~= "" then return end
  local path = handle:headers():get(":path") or ""
  local authority = handle:headers():get(":authority") or ""
  local model = path:match("^/v2/models/([^/?]+)")
  if not model and path:find("^/inference%%.GRPCInferenceService/Model") and not path:find("ModelStreamInfer", 1, true) then
    model = from_body(handle)
  end
  if not model or model == "" then model = authority:match("^([^:]+)") or "-" end
  handle:headers():replace(header, model)
end
""" % {"header": MODEL_HEADER}


def route_configuration() -> dict[str, Any]:
    """Virtual hosts come one by one (VHDS) and are picked by the model header: as fast with a thousand models as with one."""
    ads = {"ads": {}, "resource_api_version": "V3"}
    return {
        "name": ROUTE_CONFIG,
        "vhost_header": MODEL_HEADER,
        "vhds": {"config_source": ads},
        "virtual_hosts": [unknown_model_vhost()],
    }


def listener(name: str, host: str, port: int) -> dict[str, Any]:
    return {
        "name": name,
        "address": {"socket_address": {"address": host, "port_value": port}},
        "per_connection_buffer_limit_bytes": MAX_BODY_BYTES,
        "filter_chains": [{"filters": [{"name": "http", "typed_config": _connection_manager()}]}],
    }


def _connection_manager() -> dict[str, Any]:
    prefix = "type.googleapis.com/envoy.extensions.filters"
    return {
        "@type": f"{prefix}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "codec_type": "AUTO",
        "rds": {"route_config_name": ROUTE_CONFIG, "config_source": {"ads": {}, "resource_api_version": "V3"}},
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "stream_idle_timeout": "310s",
        "request_headers_timeout": "10s",
        "local_reply_config": {"body_format": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}}},
        "http_filters": [
            {
                "name": "lua",
                "typed_config": {"@type": f"{prefix}.http.lua.v3.Lua", "default_source_code": {"inline_string": MODEL_LUA}},
            },
            {
                "name": "router",
                "typed_config": {"@type": f"{prefix}.http.router.v3.Router", "upstream_log": [_attempt_log()]},
            },
        ],
        "access_log": [_request_log()],
    }


def _attempt_log() -> dict[str, Any]:
    """Per attempt, for the release whose server was tried."""
    tags = {
        "model": f"%METADATA(UPSTREAM_HOST:{NAMESPACE}:model)%",
        "digest": f"%METADATA(UPSTREAM_HOST:{NAMESPACE}:digest)%",
    }
    latency = {"name": f"{STAT_PREFIX}_latency", "tags": _tags({**tags, "entry": "%ROUTE_NAME%"})}
    return _stats_log(
        [
            {"stat": {"name": f"{STAT_PREFIX}_attempt", "tags": _tags({**tags, **_OUTCOME})}, "unit": "Milliseconds", "value_format": "%DURATION%"},
            {"stat": latency, "unit": "Microseconds", "value_format": "%COMMON_DURATION(US_TX_BEG:US_RX_END:us)%"},
        ]
    )


def _request_log() -> dict[str, Any]:
    """Per request, as the user saw it; `digest` is the release that the split picked first."""
    tags = {"model": f"%METADATA(CLUSTER:{NAMESPACE}:model)%", "digest": f"%METADATA(CLUSTER:{NAMESPACE}:digest)%"}
    stat = {"name": f"{STAT_PREFIX}_request", "tags": _tags({**tags, **_OUTCOME})}
    return _stats_log([{"stat": stat, "unit": "Milliseconds", "value_format": "%DURATION%"}])


#: Few values each: a series is never forgotten before the gateway restarts.
_OUTCOME = {
    "entry": "%ROUTE_NAME%",
    "code": "%RESPONSE_CODE%",
    "grpc": "%GRPC_STATUS_NUMBER%",
    "flags": "%RESPONSE_FLAGS%",
}


def _tags(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value_format": value} for name, value in tags.items()]


def _stats_log(histograms: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts as histograms: all of them are merged in one go, so that attempts, failures and latencies agree with each other.

    Counters would be read at another moment than the latencies, and the difference would look like slow requests.
    """
    return {
        "name": "stats",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.stats.v3.Config",
            "stat_prefix": STAT_PREFIX,
            "histograms": histograms,
        },
    }
