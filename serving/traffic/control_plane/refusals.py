"""Routes by which the gateway refuses, over HTTP and over gRPC."""

from __future__ import annotations

from typing import Any

from registry.core.kinds.kind import GRPC, HTTP, Calls

GRPC_NOT_FOUND, GRPC_PERMISSION_DENIED, GRPC_RESOURCE_EXHAUSTED, GRPC_UNIMPLEMENTED = 5, 7, 8, 12
#: Name of routes that refuse a call in the place of its server.
REFUSED = "refused"


def refusals(
    match: dict[str, Any], message: str, *, name: str, status: int = 404, grpc_status: int = GRPC_NOT_FOUND
) -> list[dict[str, Any]]:
    """`status` over HTTP and `grpc_status` over gRPC for what matches, on any path if `match` names none."""
    match = match if "safe_regex" in match else {"prefix": "/", **match}
    return [
        grpc_refusal(match, message, name=name, grpc_status=grpc_status),
        {"name": name, "match": match, "direct_response": {**not_found(message), "status": status}},
    ]


def grpc_refusal(
    match: dict[str, Any], message: str, *, name: str, grpc_status: int = GRPC_NOT_FOUND
) -> dict[str, Any]:
    """The half of `refusals` for gRPC. `match` names a path."""
    status = {
        "header": {"key": "grpc-status", "value": str(grpc_status)},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
    return {
        "name": name,
        "match": {**match, "grpc": {}},
        "direct_response": not_found(message),
        "response_headers_to_add": [status],
    }


def wrong_calls(calls: Calls) -> list[dict[str, Any]]:
    """Returns routes that refuse calls over HTTP with a content type of gRPC, and inference by
    another method than POST. They stand behind the routes of good calls.
    """
    is_grpc = {"name": "content-type", "string_match": {"prefix": "application/grpc", "ignore_case": True}}
    by_grpc = ", or call inference.GRPCInferenceService by gRPC" if GRPC in calls.protocols else ""
    no_grpc = f"this address takes JSON: send content-type: application/json{by_grpc}"
    asked = dict.fromkeys((calls.inference[HTTP], calls.stream[HTTP]))
    every = [*asked, *(path for protocol, path in calls.question.items() if protocol == HTTP)]
    return [
        *(_refused({"safe_regex": {"regex": path}, "headers": [is_grpc]}, 415, no_grpc) for path in every),
        *(_refused({"safe_regex": {"regex": path}}, 405, "inference is asked for by POST") for path in asked),
    ]


def _refused(match: dict[str, Any], status: int, message: str) -> dict[str, Any]:
    return {
        "name": REFUSED,
        "match": match,
        "direct_response": {"status": status, "body": {"inline_string": message}},
    }


def not_found(message: str) -> dict[str, Any]:
    return {"status": 404, "body": {"inline_string": message}}
