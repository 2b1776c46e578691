"""The calls that pass the gateway, in the form that servers accept. Calls that a server refuses before its model runs have no route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from registry.core.kinds import KINDS
from registry.core.kinds.kind import Calls
from serving.traffic.core.outcomes import GRPC, HTTP, Purpose

#: HTTP paths of any server kind whose body names the model.
NAMING_PATHS: Final = sorted({path for kind in KINDS.values() for path in kind.calls.names})
#: The request guard puts it on a request whose body asks for a stream, and removes a caller's.
STREAM_HEADER: Final = "x-sluicegate-stream"
_IS_POST = {"name": ":method", "string_match": {"exact": "POST"}}
#: Envoy takes the content type for the protocol: it would read a gRPC status into any answer.
_NOT_GRPC = {
    "name": "content-type",
    "string_match": {"prefix": "application/grpc", "ignore_case": True},
    "invert_match": True,
    "treat_missing_header_as_empty": True,
}


def paths_of(calls: Calls, asked: Purpose) -> Mapping[str, str]:
    """Returns the regular expressions of a server kind's paths, by protocol."""
    by_purpose = {
        Purpose.INFERENCE: calls.inference,
        Purpose.QUESTION: calls.question,
        Purpose.STREAM: calls.stream,
    }
    return by_purpose[asked]


def offered(calls: Calls, protocol: str, *, has_grpc_streams: bool) -> list[Purpose]:
    """Returns the purposes for which a model of this kind is asked over a protocol."""
    are_on = {Purpose.STREAM: protocol == HTTP or has_grpc_streams}
    every = (Purpose.INFERENCE, Purpose.STREAM, Purpose.QUESTION)
    return [asked for asked in every if protocol in paths_of(calls, asked) and are_on.get(asked, True)]


def match_of(calls: Calls, protocol: str, asked: Purpose, headers: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Returns the route match of calls that a server's front end accepts."""
    match: dict[str, Any] = {"safe_regex": {"regex": paths_of(calls, asked)[protocol]}}
    if protocol == GRPC:
        return {**match, "grpc": {}, "headers": [*headers, _IS_POST]}
    method = [] if asked is Purpose.QUESTION else [_IS_POST]
    by_body = [] if not calls.names else [_streams(asked is Purpose.STREAM)]
    return {**match, "headers": [*headers, *method, _NOT_GRPC, *by_body]}


def _streams(is_stream: bool) -> dict[str, Any]:
    return {"name": STREAM_HEADER, "present_match": is_stream}


def as_servers_want(protocol: str, asked: Purpose) -> dict[str, Any]:
    """Returns changes of the head that make gRPC servers accept a call: every client sends `te: trailers`, and no message
    but a stream's is compressed."""
    if protocol != GRPC:
        return {}
    te = {"header": {"key": "te", "value": "trailers"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    encoding = {} if asked is Purpose.STREAM else {"request_headers_to_remove": ["grpc-encoding"]}
    return {"request_headers_to_add": [te], **encoding}
