"""Why a Triton server did not answer, in the port's words: by the status of either protocol, and by what the server itself says."""

from __future__ import annotations

import json
import re

from serving.ports import InferenceError
from serving.servers.core.redaction import READ_BYTES, redacted

#: How gRPC itself refuses an answer that is longer than the channel takes.
_TOO_LONG = "larger than max"
#: gRPC status → reason. UNAVAILABLE is both "no connection" and Triton's own word for a full queue or an unloaded model.
_OF_GRPC = {
    "DEADLINE_EXCEEDED": "timeout",
    "INVALID_ARGUMENT": "rejected",
    "NOT_FOUND": "rejected",
    "ALREADY_EXISTS": "rejected",
    "UNIMPLEMENTED": "rejected",
    "CANCELLED": "unreachable",
    "RESOURCE_EXHAUSTED": "full",
}
#: HTTP status → reason, of those that are not the caller's as the other 4xx are, nor the server's as the other 5xx.
_OF_HTTP = {408: "timeout", 429: "full", 499: "unreachable", 501: "rejected", 504: "timeout"}
_OWN_UNAVAILABLE = {
    "Exceeds maximum queue size": "full",
    "Request timeout expired": "timeout",
    "is not at ready state": "rejected",
    "is restricted, expecting header": "rejected",
    "has no available versions": "rejected",
    "explicit model load / unload is not allowed": "rejected",
}

#: How Triton 2.51 begins to say that a request is not one for the model. Whatever else an error says is the model's own.
_REFUSAL = re.compile(
    r"(\[request id: [^\]]*\] )?("
    r"unexpected inference input '|inference input '.*' data-type is '|inference request batch-size must be <= |"
    r"unexpected shape for input '|expected \d+ inputs but got |unexpected inference output '|Request for unknown model: )"
)


def grpc_error(status: str, message: str) -> InferenceError:
    """The error that a gRPC status (its name) and its details stand for."""
    own = _own_reason(message) or "unreachable" if status == "UNAVAILABLE" else ""
    if status == "RESOURCE_EXHAUSTED" and _TOO_LONG in message:
        own = "server_error"
    return InferenceError(own or _OF_GRPC.get(status, "server_error"), redacted(message))


def stream_error(message: str) -> InferenceError:
    """The error that a response of a stream stands for, which has words and no status."""
    usual = "rejected" if _REFUSAL.match(message) else "server_error"
    return InferenceError(_own_reason(message) or usual, redacted(message))


def http_error(status: int, body: bytes) -> InferenceError:
    """The error that an HTTP status other than 200 stands for; Triton says why in {"error": …}, others in its member `message`."""
    body = body[:READ_BYTES]
    try:
        told = json.loads(body)["error"]
        message = str(told["message"] if isinstance(told, dict) else told)
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace")
    usual = "rejected" if 400 <= status < 500 else "server_error"
    own = _own_reason(message) if status == 503 else ""
    return InferenceError(own or _OF_HTTP.get(status, usual), redacted(message) or f"HTTP status {status}")


def _own_reason(message: str) -> str:
    return next((reason for words, reason in _OWN_UNAVAILABLE.items() if words in message), "")
