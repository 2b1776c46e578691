"""The gateway's listener: one port for HTTP/1.1, HTTP/2 and gRPC, the model's name from the request, and the counts."""

from __future__ import annotations

from typing import Any

from serving.traffic.control_plane.clusters import MAX_BODY_BYTES, NAMESPACE, SHED
from serving.traffic.control_plane.event_streams import END, FIRST, GAP, HEARD, TEXTS
from serving.traffic.control_plane.forced import RELEASE_HEADER
from serving.traffic.control_plane.request_classes import SHED_BY_CLASS
from serving.traffic.control_plane.request_guard import MODEL_HEADER, request_guard
from serving.traffic.control_plane.request_log import failed_attempts, slow_requests
from serving.traffic.control_plane.response_filters import LATE_HEADER, is_late, upstream_filters
from serving.traffic.control_plane.stream_model import stream_model
from serving.traffic.control_plane.tenants import SHED_BY_QUOTA, SHED_HEADER, limiter, peer_filters
from serving.traffic.control_plane.virtual_hosts import REQUEST_WITHIN_S, ROUTE_CONFIG, UNARY_IDLE_S

#: Every stat of ours begins with this.
STAT_PREFIX = "sli"
#: A request's head, in KiB and in lines; the largest that are in use carry a token of some kilobytes. No more than servers take: Triton
#: closes the connection at a line of 8,190 bytes, and gRPC servers refuse a head of 8 KiB.
MAX_HEAD_KIB, MAX_HEAD_LINES = 8, 100
#: Seconds in which a head must have come.
HEAD_WITHIN_S = 10


def listener(
    name: str, host: str, port: int, trusted: tuple[str, ...] = (), *, is_drained: bool = False
) -> dict[str, Any]:
    """A listener that has its port alone: with SO_REUSEPORT, Envoy's default, a second gateway on the same port would be
    let in by the kernel and silently get half of the connections. So the workers share one socket, and connections are
    dealt to them evenly, as a few long gRPC connections would else end on one worker. `trusted`: see `peer_filters`.
    `is_drained`: it says that it is not ready; and as its filters are others then, Envoy tells open connections to end.
    """
    return {
        "name": name,
        "address": {"socket_address": {"address": host, "port_value": port}},
        "enable_reuse_port": False,
        "connection_balance_config": {"exact_balance": {}},
        "per_connection_buffer_limit_bytes": MAX_BODY_BYTES,
        "filter_chains": [{"filters": [{"name": "http", "typed_config": _connection_manager(trusted, is_drained)}]}],
    }


def _connection_manager(trusted: tuple[str, ...], is_drained: bool) -> dict[str, Any]:
    prefix = "type.googleapis.com/envoy.extensions.filters"
    return {
        "@type": f"{prefix}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "codec_type": "AUTO",
        "scoped_routes": _by_model(),
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "stream_idle_timeout": f"{UNARY_IDLE_S:g}s",
        "request_headers_timeout": f"{HEAD_WITHIN_S}s",
        "request_timeout": f"{REQUEST_WITHIN_S:g}s",  # ends with the first answer of a stream
        "max_request_headers_kb": MAX_HEAD_KIB,
        "common_http_protocol_options": {"max_headers_count": MAX_HEAD_LINES},
        # nginx speaks HTTP/1.0 to what is behind it unless it is told otherwise, as do some health checks; such a request needs no host.
        "http_protocol_options": {"accept_http_10": True, "default_host_for_http_10": "gateway"},
        # Callers find their requests among those that failed or were slow by the id that they sent, or are told.
        "always_set_request_id_in_response": True,
        "early_header_mutation_extensions": [_late_is_ours()],
        "local_reply_config": {"mappers": _own_words()},
        "http_filters": [
            *peer_filters(trusted),
            stream_model(),
            request_guard(is_drained=is_drained),
            limiter(),
            {
                "name": "router",
                "typed_config": {
                    "@type": f"{prefix}.http.router.v3.Router",
                    "dynamic_stats": False,  # none of them is kept (`KEPT_STATS`)
                    "upstream_log": [_attempt_log(), failed_attempts()],
                    "upstream_http_filters": upstream_filters(),
                },
            },
        ],
        "access_log": [
            _request_log(),
            *_stream_logs(),
            _log_by("tenant"),
            _log_by("class"),
            _late_log(),
            slow_requests(),
        ],
    }


def _late_is_ours() -> dict[str, Any]:
    """Removes a caller's word that its first attempt was late: it would count as one, also where the request is refused."""
    prefix = "type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3"
    return {
        "name": "late_is_ours",
        "typed_config": {"@type": f"{prefix}.HeaderMutation", "mutations": [{"remove": LATE_HEADER}]},
    }


def _by_model() -> dict[str, Any]:
    """Each model has routes of its own, picked by the model header: as fast with a thousand models as with one, and so is a change
    of one model's weight. (Of a thousand virtual hosts in one table Envoy builds all anew for each change, which takes 0.25 s.)
    """
    ads = {"ads": {}, "resource_api_version": "V3"}
    return {
        "name": ROUTE_CONFIG,
        "scope_key_builder": {"fragments": [{"header_value_extractor": {"name": MODEL_HEADER, "index": 0}}]},
        "rds_config_source": ads,
        "scoped_rds": {"scoped_rds_config_source": ads},
    }


#: Envoy itself would say UNKNOWN or INTERNAL to most of these, which read as a server's failure: INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
_GRPC_OF_REFUSALS = (((400, 408, 415), "3"), ((413, 431), "8"))

_IS_GRPC = {"header_filter": {"header": {"name": "content-type", "string_match": {"prefix": "application/grpc"}}}}
_FORCES = {"header_filter": {"header": {"name": RELEASE_HEADER, "present_match": True}}}
#: Beyond the bounds of `serving.traffic.adapters.envoy_bootstrap`.
_FULL = "the gateway's memory is full; try again in a second"


def _own_words() -> list[dict[str, Any]]:
    """How the gateway's own answers read: as a gRPC message, or as the JSON error of the Open Inference Protocol."""
    is_error = _status(400, "GE")
    again = _header("retry-after", "1")
    full = _shed(
        {"response_flag_filter": {"flags": ["UO"]}},
        "too many requests are in flight on this release; try again in a second",
        again,
    )
    of_class = _shed(
        {"and_filter": {"filters": [{"response_flag_filter": {"flags": ["UO"]}}, _has("class")]}},
        "the places of this class of requests are taken; try again in a second",
        again,
        _BY_CLASS,
    )
    taken = _shed(
        {"and_filter": {"filters": [{"response_flag_filter": {"flags": ["NC"]}}, _FORCES]}},
        "a forced request runs on this release; one runs at a time. Try again in a second",
        again,
    )
    # The limiter of tenants sets its flag, RL, only when it has answered; nothing else of the gateway's own is 429 by itself.
    used_up = _shed(_status(429), "the quota of this tenant is used up; try again in a second", again, _BY_QUOTA)
    refused = [
        {
            "filter": {
                "and_filter": {"filters": [_IS_GRPC, {"or_filter": {"filters": [_status(code) for code in codes]}}]}
            },
            "headers_to_add": [_header("grpc-status", status)],
            "body_format_override": {"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}},
        }
        for codes, status in _GRPC_OF_REFUSALS
    ]
    # A connection that is ended as it sends gets 500 from Envoy, which nothing else of the gateway's own has.
    is_full = {"or_filter": {"filters": [{"response_flag_filter": {"flags": ["OM"]}}, _status(500)]}}
    return [
        {
            "filter": {"and_filter": {"filters": [is_full, _IS_GRPC]}},
            "headers_to_add": [again, _header("grpc-status", "14")],  # UNAVAILABLE
            "body_format_override": {"text_format_source": {"inline_string": _FULL}},
        },
        {
            "filter": is_full,
            "status_code": 503,
            "body": {"inline_string": _FULL},
            "headers_to_add": [again],
            "body_format_override": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}},
        },
        *taken,
        *of_class,
        *full,
        *used_up,
        *refused,
        {"filter": _IS_GRPC, "body_format_override": {"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}}},
        {"filter": is_error, "body_format_override": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}}},
    ]


def _shed(is_shed: dict[str, Any], words: str, *headers: dict[str, Any]) -> list[dict[str, Any]]:
    """What the gateway refused because too much came, over gRPC and over HTTP."""
    return [
        {
            "filter": {"and_filter": {"filters": [is_shed, _IS_GRPC]}},
            "body": {"inline_string": words},
            "headers_to_add": [*headers, _header("grpc-status", "8")],  # RESOURCE_EXHAUSTED
            "body_format_override": {"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}},
        },
        {
            "filter": is_shed,
            "status_code": 429,
            "body": {"inline_string": words},
            "headers_to_add": list(headers),
            "body_format_override": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}},
        },
    ]


def _status(code: int, op: str = "EQ") -> dict[str, Any]:
    compared = {"op": op, "value": {"default_value": code, "runtime_key": f"sluicegate.status_{op}_{code}"}}
    return {"status_code_filter": {"comparison": compared}}


def _header(name: str, value: str) -> dict[str, Any]:
    return {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def _has(key: str) -> dict[str, Any]:
    """Requests of which the filter of tenants wrote down this."""
    about = {"filter": NAMESPACE, "path": [{"key": key}], "value": {"present_match": True}}
    return {"metadata_filter": {"matcher": about, "match_if_key_not_found": False}}


_BY_QUOTA, _BY_CLASS = _header(SHED_HEADER, SHED_BY_QUOTA), _header(SHED_HEADER, SHED_BY_CLASS)


def _attempt_log() -> dict[str, Any]:
    """How long attempts took, for the release whose server was tried. `try` is 1, or 2 for what was handed on after a failure.

    What a server's full queue refused is left out, and `flags` tell what the gateway refused: both end in no time, and would
    make a release that is slow look half as slow for every request that it sheds. No filter of Envoy's says "without this flag".
    """
    tags = {
        "model": f"%METADATA(UPSTREAM_HOST:{NAMESPACE}:model)%",
        "digest": f"%METADATA(UPSTREAM_HOST:{NAMESPACE}:digest)%",
    }
    began = {"try": "%REQ(X-ENVOY-ATTEMPT-COUNT)%", "slot": _SLOT}
    tags |= {"entry": _OUTCOME["entry"], **began, **{name: _OUTCOME[name] for name in ("code", "grpc", "flags")}}
    return {**_stats_log([_took("latency", tags)]), "filter": _not_full()}


def _not_full() -> dict[str, Any]:
    """What reads neither 429 nor RESOURCE_EXHAUSTED: see `serving.traffic.control_plane.response_filters`."""
    below, above = _status(428, "LE"), _status(430, "GE")
    is_room = {"grpc_status_filter": {"statuses": ["RESOURCE_EXHAUSTED"], "exclude": True}}
    return {"and_filter": {"filters": [{"or_filter": {"filters": [below, above]}}, is_room]}}


def _request_log() -> dict[str, Any]:
    """Bytes of the body per request, as the user saw it; `digest` is the release that the split picked first, `by` the one that was
    tried last, after so many `tries`; `shed` tells what refused the first attempt (`outcomes.Refused`).
    """
    return _stats_log([_value("request", "%BYTES_RECEIVED%", "Bytes")])


def _value(name: str, value_format: str, unit: str = "Unspecified") -> dict[str, Any]:
    """A histogram of one value per request, with all that decides to which counts the request belongs."""
    tags = {"model": f"%METADATA(VIRTUAL_HOST:{NAMESPACE}:model)%", "digest": f"%METADATA(CLUSTER:{NAMESPACE}:digest)%"}
    drawn = {"entry": _OUTCOME["entry"], "slot": _SLOT}
    tried = {
        "by": f"%METADATA(UPSTREAM_HOST:{NAMESPACE}:digest)%",
        "tries": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        "shed": _SHED,
    }
    told = {"name": name, "tags": _tags({**tags, **drawn, **tried, **_OUTCOME})}
    return {"stat": told, "unit": unit, "value_format": value_format}


def _stream_logs() -> list[dict[str, Any]]:
    """Times of streams in milliseconds, and their events with text. `left` is the largest gap if the caller has just left: the gap so
    far, or the time since the last text; without text, the time since the attempt began.
    """
    seconds = "int(request.time) + request.duration.getSeconds()"
    ms = "request.time.getMilliseconds() + request.duration.getMilliseconds() + 1"  # rounded down, twice
    noted_here = f"metadata.filter_metadata['{NAMESPACE}']"
    wait, gap = f"(({seconds}) * 1000 + {ms} - int({noted_here}['{HEARD}']))", f"int({noted_here}['{GAP}'])"
    left = f"%CEL('{GAP}' in {noted_here} && {gap} > {wait} ? {gap} : {wait})%"
    noted = [_value(name, f"%DYNAMIC_METADATA({NAMESPACE}:{name})%") for name in (FIRST, GAP)]
    texts = _value(TEXTS, f"%DYNAMIC_METADATA({NAMESPACE}:{TEXTS})%")
    return [
        {**_stats_log(noted), "filter": _has(FIRST)},
        {**_stats_log([texts]), "filter": _has(TEXTS)},
        {**_stats_log([_value("left", left)]), "filter": _has(END)},
    ]


def _log_by(key: str) -> dict[str, Any]:
    """Per request to a model that has tenants, or classes, whichever release it is for: one of the model's own names, or `others`."""
    model = f"%METADATA(VIRTUAL_HOST:{NAMESPACE}:model)%"
    tags = {"model": model, key: f"%DYNAMIC_METADATA({NAMESPACE}:{key})%", **_OUTCOME}
    return {**_stats_log([_took(key, tags)]), "filter": _has(key)}


def _late_log() -> dict[str, Any]:
    """How long first attempts took that were late, for the release that the split picked: as long as their requests, beside whose
    second attempts they went on. The log of attempts has them with the number of the attempt that followed.
    """
    tags = {"model": f"%METADATA(VIRTUAL_HOST:{NAMESPACE}:model)%", "digest": f"%METADATA(CLUSTER:{NAMESPACE}:digest)%"}
    drawn = {"entry": _OUTCOME["entry"], "slot": _SLOT}
    return {**_stats_log([_took("latency_late", {**tags, **drawn, "shed": _SHED})]), "filter": is_late()}


#: The weight under which a request began: metadata of the route that it was matched to.
_SLOT = f"%METADATA(ROUTE:{NAMESPACE}:slot)%"
#: What shed the first attempt, in two parts: the request's metadata, and the cluster's.
#: A part that is missing reads `-`.
_SHED = f"%DYNAMIC_METADATA({NAMESPACE}:{SHED})%%METADATA(CLUSTER:{NAMESPACE}:{SHED})%"
#: Few values each: a series is never forgotten before the gateway restarts.
_OUTCOME = {
    "entry": "%ROUTE_NAME%",
    "code": "%RESPONSE_CODE%",
    "grpc": "%GRPC_STATUS_NUMBER%",
    "end": f"%DYNAMIC_METADATA({NAMESPACE}:{END})%",
    "flags": "%RESPONSE_FLAGS%",
}


def _tags(tags: dict[str, str]) -> list[dict[str, str]]:
    """All in one tag. The statistic has the name that a tag for each would give it, and Envoy builds one name, not ten."""
    (first, value), *others = tags.items()
    return [{"name": first, "value_format": "".join((value, *(f".{name}.{text}" for name, text in others)))}]


def _took(name: str, tags: dict[str, str]) -> dict[str, Any]:
    """A histogram of the whole milliseconds of the attempt or request.

    Envoy's finer durations are missing where no whole answer came, which is just where they matter.
    """
    return {"stat": {"name": name, "tags": _tags(tags)}, "unit": "Milliseconds", "value_format": "%DURATION%"}


def _stats_log(histograms: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts as histograms: all are merged in one go, so that requests, failures and latencies agree with each other.

    Counters would be read at another moment than the latencies, and the difference would look like slow requests.
    """
    return {
        "name": "stats",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.stats.v3.Config",
            # Deprecated in Envoy 1.40, and its successor is not in the protocol's published package yet.
            "stat_prefix": STAT_PREFIX,
            "histograms": histograms,
        },
    }
