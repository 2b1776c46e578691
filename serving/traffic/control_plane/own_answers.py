"""The calls that the gateway answers itself: liveness, readiness, its metadata, and gRPC health, of itself and of models.

    call                                            HTTP                   gRPC
    server live                                     200                    live: true
    server ready; `/`, which load balancers ask     200, 503 if drained    ready
    server metadata (`GET /v2`)                     200                    the same
    Health/Check without a name                     -                      SERVING, NOT_SERVING if drained
    Health/Check with a model's name                -                      SERVING, NOT_SERVING without a server
    ready of a model without a server               503                    ready: false
    a call that is not offered, or below /v1/       501                    UNIMPLEMENTED 12
    another path                                    404                    UNIMPLEMENTED 12

Source: the Open Inference Protocol v2, and gRPC's health checking protocol.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from registry.core.kinds import KINDS
from serving.traffic.adapters.envoy_own_answers import ANSWER_HEADER, ANSWERS_CLUSTER

#: Where load balancers ask whether the gateway is to be given requests. Source: the Open Inference Protocol, "server ready".
READY_PATH = "/v2/health/ready"
LIVE_PATH = "/v2/health/live"
METADATA_PATH = "/v2"
_SERVICE = "/inference.GRPCInferenceService/"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
#: What the request guard makes of a health check that names a model.
HEALTH_OF_MODEL = "/grpc.health.v1.Health/CheckModel"
#: What the request guard makes of a question for the statistics of no model. No route has it.
ALL_STATISTICS = "/inference.GRPCInferenceService/StatisticsOfAll"
#: What the request guard of a drained gateway puts before the paths of `ASKS_READY`.
DRAINED = "/drained"
#: Paths that ask whether the gateway takes requests. HAProxy and most clouds ask `/` by default.
ASKS_READY = ("/", READY_PATH, f"{_SERVICE}ServerReady", HEALTH_CHECK)
#: Match of the HTTP question whether a model is ready.
READY_OF_MODEL: dict[str, Any] = {"safe_regex": {"regex": r"^/v2/models/[^/]+(/versions/[^/]+)?/ready$"}}
#: Name of these routes: no model's requests are counted under it.
OWN_ANSWER = "own_answer"

#: Methods that ask. A request with another one is for no model and gets 404.
_ASKS = {"name": ":method", "string_match": {"safe_regex": {"regex": "GET|HEAD|OPTIONS"}}}

#: Messages, all of field 1: `live`, `ready` (bool), and `status` (1 SERVING, 2 NOT_SERVING).
_YES, _NO, _NOT_SERVING = b"\x08\x01", b"\x08\x00", b"\x08\x02"
#: Extensions of the protocol that a request to a model may use here.
_EXTENSIONS = ("binary_tensor_data", "classification", "model_configuration", "parameters", "statistics")

#: Calls that change or show a server as a whole. A release is loaded and unloaded by its rollout.
_NOT_OFFERED_PATHS = (
    r"^/v2/(repository/.*|logging|trace/setting|models/stats)$",
    r"^/v2/(system|cuda)sharedmemory(/.*)?$",
    r"^/v2/models/[^/]+(/versions/[^/]+)?/trace/setting$",
)


def not_offered(of_models: str) -> str:
    return (
        "the gateway does not offer this call. It offers server live, ready and metadata, health checks, and of "
        f"{of_models}. Releases are loaded by rollouts"
    )


_OFFERED = {
    words: ", ".join(kind.name for kind in KINDS.values() if kind.calls.words == words)
    for words in dict.fromkeys(kind.calls.words for kind in KINDS.values())
}
NOT_OFFERED = not_offered("; ".join(f"models on {kinds}: {words}" for words, kinds in _OFFERED.items()))


def gateway_routes() -> list[dict[str, Any]]:
    """Of requests that are for no model."""
    name, number = "sluicegate", _version()
    words = json.dumps({"name": name, "version": number, "extensions": _EXTENSIONS}, separators=(",", ":"))
    fields = ((1, name), (2, number), *((3, extension) for extension in _EXTENSIONS))
    message = b"".join(_text(field, text) for field, text in fields)
    said = {
        f"{_SERVICE}ServerLive": _YES,
        f"{_SERVICE}ServerReady": _YES,
        f"{_SERVICE}ServerMetadata": message,
        HEALTH_CHECK: _YES,
        f"{DRAINED}{_SERVICE}ServerReady": _NO,
        f"{DRAINED}{HEALTH_CHECK}": _NOT_SERVING,
    }
    drained = "the gateway is drained; it is to get no more requests"
    return [
        *(grpc_answer(path, bytes_) for path, bytes_ in said.items()),
        *(_plain(path, 200, "") for path in ("/", LIVE_PATH, READY_PATH)),
        *(_plain(f"{DRAINED}{path}", 503, drained) for path in ("/", READY_PATH)),
        _plain(METADATA_PATH, 200, words, {"content-type": "application/json"}),
        *(_plain_matching({"safe_regex": {"regex": one}}, 501, NOT_OFFERED) for one in _NOT_OFFERED_PATHS),
    ]


def model_routes(model: str, *, is_ready: bool, asleep: str = "", asks_server: bool = True) -> list[dict[str, Any]]:
    """Of requests that ask about a model's health. While it has a server, that server answers whether it is ready, if its kind
    takes the question (`asks_server`). `asleep`: the name of the answers that a model without a loaded server gives, HTTP's among them.
    """
    health = grpc_answer(HEALTH_OF_MODEL, _YES if is_ready else _NOT_SERVING)
    if is_ready and asks_server:
        return [health]
    if is_ready:
        return [health, grpc_answer(f"{_SERVICE}ModelReady", _YES), _plain_matching(READY_OF_MODEL, 200, "")]
    words = f"{model} is not ready: no server of it serves here"
    is_no = grpc_answer(f"{_SERVICE}ModelReady", _NO, name=asleep or OWN_ANSWER)
    return [health, is_no, *([] if asleep else [_plain_matching(READY_OF_MODEL, 503, words)])]


def grpc_answer(path: str, message: bytes, *, name: str = OWN_ANSWER) -> dict[str, Any]:
    """A route that answers a gRPC call with this message."""
    answer = {"header": {"key": ANSWER_HEADER, "value": message.hex()}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    return {
        "name": name,
        "match": {"path": path, "grpc": {}},
        "route": {"cluster": ANSWERS_CLUSTER, "timeout": "5s"},
        "request_headers_to_add": [answer],
    }


def _plain(path: str, status: int, words: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    return _plain_matching({"path": path, "headers": [_ASKS]}, status, words, headers)


def _plain_matching(
    match: dict[str, Any], status: int, words: str, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    body = {"body": {"inline_string": words}} if words else {}
    added = [
        {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        for key, value in (headers or {}).items()
    ]
    return {
        "name": OWN_ANSWER,
        "match": match,
        "direct_response": {"status": status, **body},
        **({"response_headers_to_add": added} if added else {}),
    }


def _text(field: int, text: str) -> bytes:
    """A text of up to 127 bytes as a field of a message."""
    raw = text.encode()
    return bytes([field << 3 | 2, len(raw)]) + raw


def _version() -> str:
    try:
        return version("sluicegate")
    except PackageNotFoundError:  # it runs from its folder
        return "0"
