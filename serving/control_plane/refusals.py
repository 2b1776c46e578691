"""Routes by which the gateway refuses, over HTTP and over gRPC."""

from __future__ import annotations

from typing import Any

GRPC_NOT_FOUND, GRPC_UNIMPLEMENTED = 5, 12


def refusals(
    match: dict[str, Any], message: str, *, name: str, grpc_status: int = GRPC_NOT_FOUND
) -> list[dict[str, Any]]:
    """404 over HTTP and `grpc_status` over gRPC for what matches, on any path if `match` names none."""
    match = match if "safe_regex" in match else {"prefix": "/", **match}
    return [
        grpc_refusal(match, message, name=name, grpc_status=grpc_status),
        {"name": name, "match": match, "direct_response": not_found(message)},
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


def not_found(message: str) -> dict[str, Any]:
    return {"status": 404, "body": {"inline_string": message}}
