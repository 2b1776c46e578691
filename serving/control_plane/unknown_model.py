"""The virtual host of requests whose model has no routes."""

from __future__ import annotations

from typing import Any

from serving.control_plane.calls import NAMING_PATHS
from serving.control_plane.own_answers import HEALTH_OF_MODEL, NOT_OFFERED, gateway_routes
from serving.control_plane.refusals import GRPC_UNIMPLEMENTED, grpc_refusal, not_found
from serving.control_plane.request_guard import MODEL_HEADER, UNKNOWN_MODEL, incoming_route
from serving.control_plane.virtual_hosts import vhost_name
from serving.core.routes import REQUEST_BYTES

#: Every gateway has it, so that none is ever sent an empty first answer, which would keep its port shut for 15 s.
UNKNOWN = vhost_name(UNKNOWN_MODEL)


#: gRPC calls that name a model.
_OF_MODELS = ("/inference.GRPCInferenceService/Model", HEALTH_OF_MODEL)


def unknown_model_vhost() -> dict[str, Any]:
    """Where requests go whose model has no routes: the request guard gives them the name `UNKNOWN_MODEL`."""
    message = f"no such model here; name it in the path, in the body's member `model`, or in the header {MODEL_HEADER}"
    unknown: dict[str, Any] = {"name": "unknown_model", "direct_response": not_found(message)}
    return {
        "name": "unknown_model",
        "domains": ["*"],
        "routes": [
            incoming_route(),
            *gateway_routes(),
            *(grpc_refusal({"prefix": path}, message, name="unknown_model") for path in _OF_MODELS),
            grpc_refusal({"prefix": "/"}, NOT_OFFERED, name="not_offered", grpc_status=GRPC_UNIMPLEMENTED),
            *({"match": {"path": path}, **unknown} for path in NAMING_PATHS),
            {
                "name": "not_offered",
                "match": {"prefix": "/v1/"},
                "direct_response": {**not_found(NOT_OFFERED), "status": 501},
            },
            {"match": {"prefix": "/"}, **unknown},
        ],
        # While only its message says which model a gRPC request is for, it stands here: larger ones name it in the head.
        "request_body_buffer_limit": str(REQUEST_BYTES),
    }
