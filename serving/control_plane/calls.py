"""The calls that pass the gateway, in the form that servers accept. Calls that a server refuses before its model runs have no route."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from serving.core.outcomes import GRPC, HTTP, Purpose

_SERVICE = r"/inference\.GRPCInferenceService/"
_MODEL_PATH = r"^/v2/models/[^/]+(/versions/[^/]+)?"
#: Inference, and questions about the model; never loading, tracing, logging or shared memory, which change the server. Only inference
#: is evidence, so that questions have routes of their own.
#: Envoy refuses a regular expression that compiles to more than 100 instructions, so each is short.
PATHS = {
    Purpose.INFERENCE: {"grpc": rf"^{_SERVICE}ModelInfer$", "http": rf"{_MODEL_PATH}/(infer|generate)$"},
    Purpose.QUESTION: {
        "grpc": rf"^{_SERVICE}Model(Ready|Metadata|Config|Statistics)$",
        "http": rf"{_MODEL_PATH}(/(ready|config|stats))?$",
    },
    Purpose.STREAM: {"grpc": rf"^{_SERVICE}ModelStreamInfer$", "http": rf"{_MODEL_PATH}/generate_stream$"},
}
PROTOCOLS = (GRPC, HTTP)
_IS_POST = {"name": ":method", "string_match": {"exact": "POST"}}
#: Envoy takes the content type for the protocol: it would read a gRPC status into any answer.
_NOT_GRPC = {
    "name": "content-type",
    "string_match": {"prefix": "application/grpc", "ignore_case": True},
    "invert_match": True,
    "treat_missing_header_as_empty": True,
}


def match_of(protocol: str, asked: Purpose, headers: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Returns the route match of calls that a server's front end accepts."""
    match: dict[str, Any] = {"safe_regex": {"regex": PATHS[asked][protocol]}}
    if protocol == GRPC:
        return {**match, "grpc": {}, "headers": [*headers, _IS_POST]}
    method = [] if asked is Purpose.QUESTION else [_IS_POST]
    return {**match, "headers": [*headers, *method, _NOT_GRPC]}


def as_servers_want(protocol: str, asked: Purpose) -> dict[str, Any]:
    """Returns changes of the head that make gRPC servers accept a call: every client sends `te: trailers`, and no message
    but a stream's is compressed."""
    if protocol != GRPC:
        return {}
    te = {"header": {"key": "te", "value": "trailers"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    encoding = {} if asked is Purpose.STREAM else {"request_headers_to_remove": ["grpc-encoding"]}
    return {"request_headers_to_add": [te], **encoding}
