"""Clients of inference servers of every kind."""

from __future__ import annotations

from registry.core.kinds import spoken
from serving.ports import Tensors
from serving.servers.adapters.triton import TritonServer
from serving.servers.adapters.triton_requests import parcel_of
from serving.servers.text_server import TextServer, body_of

Client = TritonServer | TextServer


def client_of(host: str, http_port: int, grpc_port: int, speaks: str) -> Client:
    """A client of the server that listens there. The caller closes it.

    Args:
        speaks: what `registry.core.kinds.spoken_by` returned.
    """
    if not speaks:
        return TritonServer(host, http_port, grpc_port)
    return TextServer(host, http_port, *spoken(speaks))


def request_bytes(model: str, inputs: Tensors, *, protocol: str, speaks: str = "") -> int:
    """Bytes of the body of one request, without the frame of gRPC.

    Args:
        speaks: as of `client_of`.
    """
    if speaks:
        return len(body_of(spoken(speaks)[1], model, inputs))
    return len(parcel_of(model, [inputs], protocol=protocol, host="", port=0).bodies[0])
