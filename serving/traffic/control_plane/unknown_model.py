"""The virtual host of requests for models without routes."""

from __future__ import annotations

from typing import Any

from serving.traffic.control_plane.calls import NAMING_PATHS
from serving.traffic.control_plane.own_answers import HEALTH_OF_MODEL, NOT_OFFERED, gateway_routes
from serving.traffic.control_plane.refusals import GRPC_UNIMPLEMENTED, grpc_refusal, not_found
from serving.traffic.control_plane.request_guard import MODEL_HEADER, UNKNOWN_MODEL, incoming_route
from serving.traffic.control_plane.virtual_hosts import vhost_name
from serving.traffic.core.routes import REQUEST_BYTES

#: Every gateway has these routes: an empty first answer would keep its port shut for 15 s.
UNKNOWN = vhost_name(UNKNOWN_MODEL)


#: gRPC calls that name a model.
_OF_MODELS = ("/inference.GRPCInferenceService/Model", HEALTH_OF_MODEL)


def unknown_model_vhost() -> dict[str, Any]:
    """Returns the host of requests that the request guard gives the name `UNKNOWN_MODEL`."""
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
        # A gRPC request is held here until its message names its model; a larger one names it in the head.
        "request_body_buffer_limit": str(REQUEST_BYTES),
    }
