"""The ADS server: gRPC streams from gateways, each fed by a GatewayStream."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import grpc
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.discovery.v3 import discovery_pb2

from serving.environments.core.addresses import UNIX, TlsFiles, gateway_identity
from serving.traffic.control_plane.received import StreamAck
from serving.traffic.control_plane.request_log import LoggedRequest, requests_in
from serving.traffic.control_plane.snapshot import Snapshot, compile_listeners
from serving.traffic.control_plane.stream import GatewayStream

log = logging.getLogger(__name__)

SERVICE = "envoy.service.discovery.v3.AggregatedDiscoveryService"
LOG_SERVICE = "envoy.service.accesslog.v3.AccessLogService"
#: Without the first three, gRPC's ping policing closes a quiet gateway's stream every few seconds.
OPTIONS = (
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # What keep-alive goes by: a frozen peer is left after 20 s, and not after 70.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),
)
#: Time-outs and delayed removals are looked at this often.
TICK_S = 0.5
#: Who has not taken a response for so long is not waited for before the routes are read again.
HELD_UP_S = 0.1
#: Streams have this long to end by themselves. Shorter than the supervisor waits for the process.
GRACE_S = 3.0


@dataclass(frozen=True)
class GatewayIdentity:
    """A registered gateway. `name` is its xDS node id; `addresses` are the (host, port) it listens on; `trusted` the networks of
    the proxies whose word on a request's tenant it believes. One that is drained says that it is not ready."""

    id: int
    name: str
    environment: str
    addresses: tuple[tuple[str, int], ...]
    trusted: tuple[str, ...] = ()
    is_drained: bool = False


class Wake(asyncio.Event):
    """There is something for a gateway's stream to look at. `has_snapshot`: one that it has not seen; `sending_since`: it waits until the
    gateway takes what it was sent (monotonic seconds); `follows_at`: up to when the gateway has what the database said.
    """

    has_snapshot = False
    sending_since: float | None = None
    follows_at: datetime | None = None

    def publish(self) -> None:
        self.has_snapshot = True
        self.set()

    def is_behind(self, now: float) -> bool:
        """Whether it looks at a snapshot as soon as the loop has time: and not when its gateway, which may be frozen, has."""
        is_held_up = self.sending_since is not None and now - self.sending_since > HELD_UP_S
        return self.has_snapshot and not is_held_up


class Plane(Protocol):
    """What the server asks of the control plane."""

    def gateway(self, name: str) -> GatewayIdentity | None: ...
    def snapshot(self, environment: str) -> Snapshot | None: ...
    def read_at(self, environment: str) -> datetime | None: ...
    def subscribe(self, gateway: GatewayIdentity, wake: Wake) -> None: ...
    def unsubscribe(self, gateway: GatewayIdentity, wake: Wake) -> None: ...
    def record_acks(self, gateway: GatewayIdentity, acks: list[StreamAck]) -> None: ...
    def record_refusal(self, gateway: GatewayIdentity, peer: str, reason: str) -> None: ...
    def record_requests(self, gateway: GatewayIdentity, requests: Iterable[LoggedRequest]) -> None: ...


class AdsServer:
    """One stream for each gateway at a time. Who comes second under the same name is turned away: whoever it is, the words of two
    peers about one gateway's routes are worth nothing. A gateway that was restarted is let in as soon as its dead stream has ended.
    """

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self._server: grpc.aio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._wants_certificates = False
        self._wakes: set[Wake] = set()
        self._log_readers: set[asyncio.Task[None]] = set()
        self._live: set[str] = set()

    @property
    def is_open(self) -> bool:
        return self._server is not None

    async def start(self, address: str, tls: TlsFiles | None = None) -> int:
        """Opens host:port, and returns the port, or unix:/path, for this process's user alone.

        With `tls` a gateway needs a certificate of the authority that names it (`addresses.gateway_identity`). Raises RuntimeError
        when the port is taken, OSError when a file cannot be read.
        """
        server = grpc.aio.server(options=list(OPTIONS))
        handler: Any = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=discovery_pb2.DeltaDiscoveryRequest.FromString,
            response_serializer=discovery_pb2.DeltaDiscoveryResponse.SerializeToString,
        )
        log_handler: Any = grpc.stream_unary_rpc_method_handler(
            self._requests,
            request_deserializer=als_pb2.StreamAccessLogsMessage.FromString,
            response_serializer=als_pb2.StreamAccessLogsResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, {"DeltaAggregatedResources": handler}),
                grpc.method_handlers_generic_handler(LOG_SERVICE, {"StreamAccessLogs": log_handler}),
            )
        )
        self._wants_certificates = tls is not None
        add = server.add_insecure_port
        port = add(address) if tls is None else server.add_secure_port(address, _credentials(tls))
        if address.startswith(UNIX):
            Path(address.removeprefix(UNIX)).chmod(0o600)
        self._server = server
        await server.start()
        self._ticker = asyncio.create_task(self._tick())
        return port

    async def stop(self) -> None:
        """Lets streams end by themselves: gRPC logs cancelled ones as errors. It can be started again."""
        server, self._server = self._server, None
        if self._ticker is not None:
            self._ticker.cancel()
        self._wake_all()
        for reader in self._log_readers:
            reader.cancel()
        if server is not None:
            await server.stop(grace=GRACE_S)

    async def _tick(self) -> None:
        """One for all streams: a time-out of its own for each wait of each of them costs more than what they wait for."""
        while True:
            await asyncio.sleep(TICK_S)
            self._wake_all()

    def _wake_all(self) -> None:
        for wake in self._wakes:
            wake.set()

    async def _stream(
        self, requests: AsyncIterator[discovery_pb2.DeltaDiscoveryRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[discovery_pb2.DeltaDiscoveryResponse]:
        incoming = aiter(requests)
        first = await anext(incoming, None)
        if first is None:
            return
        gateway = self.plane.gateway(first.node.id)
        refusal = self._refusal(first.node.id, gateway, context)
        if refusal is not None or gateway is None:
            code, message = refusal or (grpc.StatusCode.PERMISSION_DENIED, "")
            if gateway is not None:
                self.plane.record_refusal(gateway, context.peer(), message)
            await context.abort(code, message)
            return
        log.info("gateway %s connected", gateway.name)
        wake = Wake()
        own = compile_listeners(gateway.addresses, gateway.trusted, is_drained=gateway.is_drained)
        stream = GatewayStream(own, now=time.monotonic())
        stream.receive(first)
        wake.set()
        self._wakes.add(wake)
        self._live.add(gateway.name)
        self.plane.subscribe(gateway, wake)
        reader = asyncio.create_task(_read(incoming, stream, wake))
        try:
            async for response in self._feed(gateway, stream, wake, reader):
                yield response
        finally:
            reader.cancel()
            self._wakes.discard(wake)
            self._live.discard(gateway.name)
            self.plane.unsubscribe(gateway, wake)
            log.info("gateway %s disconnected", gateway.name)

    async def _requests(
        self, messages: AsyncIterator[als_pb2.StreamAccessLogsMessage], context: grpc.aio.ServicerContext[Any, Any]
    ) -> als_pb2.StreamAccessLogsResponse:
        """Requests that failed or were slow, of a gateway that is let in: a stream for each of its workers and logs."""
        reader = asyncio.create_task(self._record(messages, context))
        self._log_readers.add(reader)
        try:
            await asyncio.wait({reader})  # which `stop` ends, too
            if not reader.cancelled():
                reader.result()
        finally:
            reader.cancel()
            self._log_readers.discard(reader)
        return als_pb2.StreamAccessLogsResponse()

    async def _record(
        self, messages: AsyncIterator[als_pb2.StreamAccessLogsMessage], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        gateway, name = None, ""
        async for message in messages:
            if gateway is None:
                told = message.identifier
                gateway, name = self.plane.gateway(told.node.id), told.log_name
                if gateway is None or self._is_another(gateway.name, context):
                    await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{told.node.id!r} is not let in here")
                    break
            self.plane.record_requests(gateway, requests_in(message, name))

    def _is_another(self, name: str, context: grpc.aio.ServicerContext[Any, Any]) -> bool:
        """Whether the peer does not show the certificate of the gateway of this name, where one is asked for."""
        return self._wants_certificates and gateway_identity(name).encode() not in (context.peer_identities() or ())

    def _refusal(
        self, name: str, gateway: GatewayIdentity | None, context: grpc.aio.ServicerContext[Any, Any]
    ) -> tuple[grpc.StatusCode, str] | None:
        """Why a peer that says it is the gateway of this name is turned away; None where it is let in."""
        if self._is_another(name, context):
            return grpc.StatusCode.PERMISSION_DENIED, f"the certificate is not that of gateway {name!r}"
        if gateway is None:
            message = f"no gateway named {name!r} is registered; register it for an environment first"
            log.warning(message)
            return grpc.StatusCode.PERMISSION_DENIED, message
        if name in self._live:
            return grpc.StatusCode.ALREADY_EXISTS, f"gateway {name} is connected already, and has one stream at a time"
        return None

    async def _feed(
        self, gateway: GatewayIdentity, stream: GatewayStream, wake: Wake, reader: asyncio.Task[None]
    ) -> AsyncIterator[discovery_pb2.DeltaDiscoveryResponse]:
        while not reader.done():
            await wake.wait()
            wake.clear()
            current = self.plane.gateway(gateway.name)
            if not self.is_open or current != gateway:
                return  # registered anew with other addresses, or gone: let it connect again
            snapshot, read_at = self.plane.snapshot(gateway.environment), self.plane.read_at(gateway.environment)
            if snapshot is None:
                continue
            wake.has_snapshot = False
            for response in stream.due(snapshot, time.monotonic()):
                wake.sending_since = time.monotonic()
                yield response
            wake.sending_since = None
            acks = stream.acks(snapshot)
            if acks:
                self.plane.record_acks(gateway, acks)
            wake.follows_at = stream.follows_at(snapshot, read_at) if read_at is not None else None


async def _read(
    requests: AsyncIterator[discovery_pb2.DeltaDiscoveryRequest], stream: GatewayStream, wake: Wake
) -> None:
    try:
        async for request in requests:
            if request.HasField("error_detail"):
                log.warning("gateway refused %s: %s", request.type_url, request.error_detail.message)
            stream.receive(request)
            wake.set()
    finally:
        wake.set()


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    own = (Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes())
    authority = Path(tls.authority).read_bytes()
    return grpc.ssl_server_credentials([own], root_certificates=authority, require_client_auth=True)
