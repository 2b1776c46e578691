"""Which requests failed or were slow, one by one: what a gateway tells of them, for people to look at. Counts judge, not these.

Failed attempts are told with the server that failed, whatever a second attempt made of them. Slow requests are told for the release
that the split picked: over its objective (`slow_ms`), or so late that a second attempt was begun beside the first. All goes to the
control plane over the connection's own cluster; a control plane that is away loses them, and traffic does not notice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2

from serving.traffic.control_plane.clusters import NAMESPACE
from serving.traffic.control_plane.response_filters import second_is_late
from serving.traffic.core.outcomes import GRPC_FAILURES, is_failure

FAILED: Final = "failed"
SLOW: Final = "slow"
_ATTEMPT: Final = "x-envoy-attempt-count"
#: Route metadata: from when on a request is slow, as text such as `250ms`.
SLOW_AFTER: Final = "slow_after"
#: The time from the first byte sent to a server to its first byte of the answer.
#: A caller that sends slowly makes no slow request.
_IS_SLOW: Final = (
    f"response.backend_latency >= duration(xds.route_metadata.filter_metadata['{NAMESPACE}']['{SLOW_AFTER}'])"
)
#: Whole milliseconds of a request from which on the gateway evaluates `_IS_SLOW`, which costs a quick request much.
#: Requests to models whose threshold is lower have the header.
_LEAST_MS: Final = 10
QUICK_HEADER: Final = "x-sluicegate-quick"
#: What ends an attempt without an answer: no connection, a broken one, a time-out, what is no HTTP.
_FLAGS: Final = {
    "upstream_connection_failure": "UF",
    "upstream_connection_termination": "UC",
    "upstream_request_timeout": "UT",
    "upstream_remote_reset": "UR",
    "upstream_protocol_error": "UPE",
}
_GRPC_NAMES: Final = {
    2: "UNKNOWN",
    4: "DEADLINE_EXCEEDED",
    10: "ABORTED",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    15: "DATA_LOSS",
}
#: Characters of a caller's own request id that are kept.
LONGEST_ID: Final = 100


@dataclass(frozen=True)
class LoggedRequest:
    """An attempt that failed, or a request that was slow. `digest`: of the release; `took_ms` in milliseconds.

    `server`: host:port of the server that failed, or answered; empty where there was none. `http_status` 0: no answer came.
    """

    kind: str
    digest: str
    at: datetime
    request_id: str
    took_ms: float
    http_status: int
    grpc_status: int | None
    tries: int
    flags: str
    server: str


def failed_attempts() -> dict[str, Any]:
    """For the router's log of attempts."""
    is_grpc = {"header_filter": {"header": {"name": "content-type", "string_match": {"prefix": "application/grpc"}}}}
    failures = [_GRPC_NAMES[code] for code in sorted(GRPC_FAILURES)]
    of_grpc = {"and_filter": {"filters": [is_grpc, {"grpc_status_filter": {"statuses": failures}}]}}
    at_least = {"op": "GE", "value": {"default_value": 500, "runtime_key": "sluicegate.told_from"}}
    of_http = {"status_code_filter": {"comparison": at_least}}
    cut = {"response_flag_filter": {"flags": sorted(_FLAGS.values())}}
    return {**_log(FAILED, "UPSTREAM_HOST"), "filter": {"or_filter": {"filters": [of_http, of_grpc, cut]}}}


def slow_requests() -> dict[str, Any]:
    """For the listener's log of requests: those that were over the objective, or late."""
    cel = "type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
    is_slow = {"extension_filter": {"name": "slow", "typed_config": {"@type": cel, "expression": _IS_SLOW}}}
    least = {"op": "GE", "value": {"default_value": _LEAST_MS, "runtime_key": "sluicegate.slow_from"}}
    is_quick = {"header_filter": {"header": {"name": QUICK_HEADER, "present_match": True}}}
    may_be = {"or_filter": {"filters": [{"duration_filter": {"comparison": least}}, is_quick]}}
    return {
        **_log(SLOW, "CLUSTER"),
        "filter": {"or_filter": {"filters": [second_is_late(), {"and_filter": {"filters": [may_be, is_slow]}}]}},
    }


def slow_after(slow_ms: float | None) -> dict[str, str]:
    """Returns route metadata: when a request is slow, in ms; empty if none is."""
    return {} if slow_ms is None else {SLOW_AFTER: f"{slow_ms:.0f}ms"}


def quick_header(slow_ms: float | None) -> list[dict[str, Any]]:
    """Returns a route's headers to add if a request is slow before the time from which on the gateway asks each."""
    if slow_ms is None or slow_ms >= _LEAST_MS:
        return []
    return [{"header": {"key": QUICK_HEADER, "value": "yes"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]


def _log(name: str, whose: str) -> dict[str, Any]:
    return {
        "name": f"told_{name}",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
            "common_config": {
                "log_name": name,
                "transport_api_version": "V3",
                "buffer_flush_interval": "0.2s",
                "grpc_service": {"envoy_grpc": {"cluster_name": "ads"}},
                "custom_tags": [{"tag": "digest", "value": f"%METADATA({whose}:{NAMESPACE}:digest)%"}],
            },
            "additional_request_headers_to_log": [_ATTEMPT],
            "additional_response_headers_to_log": ["grpc-status"],
            "additional_response_trailers_to_log": ["grpc-status"],
        },
    }


def requests_in(message: als_pb2.StreamAccessLogsMessage, name: str) -> Iterator[LoggedRequest]:
    """What a gateway's message tells. `name`: the log's, which the stream's first message has. What names no release is left out."""
    for entry in message.http_logs.log_entry:
        common, digest = entry.common_properties, entry.common_properties.custom_tags.get("digest", "")
        if name not in (FAILED, SLOW) or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            continue
        flags = [short for field, short in _FLAGS.items() if getattr(common.response_flags, field)]
        status, of_grpc = entry.response.response_code.value, _grpc_status(entry)
        if name == FAILED and not is_failure(http_status=status, grpc_status=of_grpc, was_cut=bool(flags)):
            continue
        yield LoggedRequest(
            kind=name, digest=digest, at=common.start_time.ToDatetime(UTC), request_id=_readable(entry.request.request_id),
            took_ms=common.duration.ToTimedelta().total_seconds() * 1000, http_status=status, grpc_status=of_grpc,
            tries=_tries(entry), flags=" ".join(flags), server=_address(common),
        )  # fmt: skip


def _grpc_status(entry: accesslog_pb2.HTTPAccessLogEntry) -> int | None:
    said = entry.response.response_trailers.get("grpc-status") or entry.response.response_headers.get("grpc-status", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) <= 3 else None


def _tries(entry: accesslog_pb2.HTTPAccessLogEntry) -> int:
    said = entry.request.request_headers.get(_ATTEMPT, "")
    return min(int(said), 9) if said.isascii() and said.isdigit() and len(said) < 3 else 1


def _address(common: accesslog_pb2.AccessLogCommon) -> str:
    found = common.upstream_remote_address.socket_address
    return f"{found.address}:{found.port_value}" if found.address else ""


def _readable(request_id: str) -> str:
    """A caller may have sent it: what is not printed on paper is left out, and its end."""
    return "".join(letter for letter in request_id if letter.isprintable())[:LONGEST_ID]
