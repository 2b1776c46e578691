"""`python -m serving.traffic.control_plane.relay`: stands beside one gateway's Envoy, between it and its control planes.

What Envoy takes is on the disk before a control plane hears that it was taken. So an Envoy that starts while no control plane answers
is served the last that was taken, and is handed to the first control plane that comes back.

It needs neither the database nor the site's settings, and knows no secret but the gateway's own key.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest as Request
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryResponse as Response

from ledger.adapters.files import keep_private
from serving.environments.core.addresses import CONTROL_PLANE_NAME, UNIX, Address, TlsFiles
from serving.traffic.control_plane.kept import Holding, Resources, SnapshotFile
from serving.traffic.control_plane.protos import CLUSTER, LISTENER, SCOPE
from serving.traffic.control_plane.server import LOG_SERVICE, OPTIONS, SERVICE

log = logging.getLogger(__name__)

#: A control plane that has not taken a connection by then is passed over.
REACH_S = 1.0
#: While none is there, they are tried this often.
RETRY_S = 0.5
_LINE = (
    *OPTIONS,
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # each trial is its own: a failed one must not make the next wait
    ("grpc.enable_http_proxy", 0),
    ("grpc.ssl_target_name_override", CONTROL_PLANE_NAME),
)


class Relay:
    """For the gateway of the file. `control_planes` are tried in this order; one that refuses the gateway becomes the last."""

    def __init__(self, file: SnapshotFile, control_planes: tuple[str, ...], tls: TlsFiles | None = None) -> None:
        self._file, self._addresses, self._tls = file, control_planes, tls
        self._last: Resources = file.read()
        self._is_kept = bool(self._last)
        self._writer = ThreadPoolExecutor(1, "snapshot")  # one, so that an older snapshot never comes after a newer one
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str) -> None:
        """Opens unix:/path, for this process's user alone. Raises RuntimeError when that cannot be."""
        self._server = grpc.aio.server(options=list(OPTIONS))
        stream: Any = grpc.stream_stream_rpc_method_handler(
            self._stream, request_deserializer=Request.FromString, response_serializer=Response.SerializeToString
        )
        logs: Any = grpc.stream_unary_rpc_method_handler(self._logs)  # bytes, as they are
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, {"DeltaAggregatedResources": stream}),
                grpc.method_handlers_generic_handler(LOG_SERVICE, {"StreamAccessLogs": logs}),
            )
        )
        self._server.add_insecure_port(address)
        Path(address.removeprefix(UNIX)).chmod(0o600)
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)
        self._writer.shutdown()

    async def _stream(
        self, requests: AsyncIterator[Request], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[Response, None]:
        incoming = aiter(requests)
        first = await anext(incoming, None)
        if first is None:
            return
        if first.node.id != self._file.gateway:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"this is the relay of {self._file.gateway!r}")
        line = await self._reach()
        if line is None and not self._last:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no control plane answers, and no snapshot is kept yet")
        answers = self._kept(first, incoming) if line is None else self._passed_on(line, first, incoming, context)
        async with contextlib.aclosing(answers):
            async for answer in answers:
                yield answer

    # -- with a control plane ---------------------------------------------------------------------------------------

    async def _passed_on(
        self,
        line: grpc.aio.Channel,
        first: Request,
        incoming: AsyncIterator[Request],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncGenerator[Response, None]:
        holding, is_answered = Holding(self._last), False
        method = line.stream_stream(
            f"/{SERVICE}/DeltaAggregatedResources",
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )
        call: Any = method()
        teller = asyncio.create_task(self._tell(call, holding, first, incoming))
        log.info("a control plane answers")
        try:
            while (answer := await call.read()) is not grpc.aio.EOF:
                holding.send(answer)
                is_answered = True
                yield answer
        except grpc.aio.AioRpcError as error:
            if not is_answered:  # one that refuses this gateway must not keep it from the others
                self._addresses = (*self._addresses[1:], self._addresses[0])
            log.warning("the control plane is gone: %s", error.details())
            await context.abort(error.code(), error.details() or "")
        finally:
            teller.cancel()
            call.cancel()
            await line.close()

    async def _tell(self, call: Any, holding: Holding, first: Request, incoming: AsyncIterator[Request]) -> None:
        """Passes on what Envoy says; what it took is kept before that, once for all that it said meanwhile: it takes its routes one
        by one, and there may be a thousand.
        """
        said: asyncio.Queue[Request | None] = asyncio.Queue()
        said.put_nowait(first)
        listener = asyncio.create_task(_collect(incoming, said))
        try:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader of answers sees why
                while requests := [one async for one in _waiting(said)]:
                    await self._keep(holding, requests)
                    for request in requests:
                        await call.write(request)
                await call.done_writing()
        finally:
            listener.cancel()

    async def _keep(self, holding: Holding, requests: list[Request]) -> None:
        has_changed = [holding.receive(one) for one in requests]
        if (any(has_changed) or not self._is_kept) and (whole := holding.whole()):
            self._last = whole
            write = asyncio.get_running_loop().run_in_executor(self._writer, self._file.write, whole)
            self._is_kept = await write

    async def _logs(self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        """Requests that failed or were slow: they go through, or are lost."""
        line = await self._reach()
        if line is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no control plane answers")
            return b""
        call: Any = line.stream_unary(f"/{LOG_SERVICE}/StreamAccessLogs")()
        try:
            async for message in messages:
                await call.write(message)
            await call.done_writing()
            return bytes(await call)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        except asyncio.InvalidStateError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the control plane is gone")
        finally:
            call.cancel()
            await line.close()
        return b""

    # -- without one ------------------------------------------------------------------------------------------------

    async def _kept(self, first: Request, incoming: AsyncIterator[Request]) -> AsyncGenerator[Response, None]:
        """What was kept, until a control plane answers: Envoy calls again then, and says what it has."""
        log.warning("no control plane answers: Envoy is served the last snapshot that it took")
        answers = KeptAnswers(self._last)
        back = asyncio.create_task(self._until_reached())
        said = asyncio.create_task(_just(first))
        try:
            while True:
                await asyncio.wait({said, back}, return_when=asyncio.FIRST_COMPLETED)
                if back.done() or (request := said.result()) is None:
                    return
                if (answer := answers.to(request)) is not None:
                    yield answer
                said = asyncio.create_task(_next(incoming))
        finally:
            for task in (said, back):
                task.cancel()

    async def _until_reached(self) -> None:
        while (line := await self._reach()) is None:
            await asyncio.sleep(RETRY_S)
        await line.close()

    async def _reach(self) -> grpc.aio.Channel | None:
        """A line to the first control plane that takes one."""
        for address in self._addresses:
            try:
                line = self._line(address)
            except OSError as problem:
                log.error("the certificates cannot be read: %s", problem)
                return None
            try:
                async with asyncio.timeout(REACH_S):
                    if await _is_taken(line):
                        return line
            except TimeoutError:
                log.debug("%s takes no connection", address)
            await line.close()
        return None

    def _line(self, address: str) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=_LINE)
        own = (Path(self._tls.key).read_bytes(), Path(self._tls.certificate).read_bytes())
        credentials = grpc.ssl_channel_credentials(Path(self._tls.authority).read_bytes(), *own)
        return grpc.aio.secure_channel(address, credentials, options=_LINE)


class KeptAnswers:
    """What one Envoy is told from a kept snapshot: each resource once, unless it has it or asks again."""

    def __init__(self, kept: Resources) -> None:
        self._kept = kept
        self._asked: set[str] = set()
        self._nonces = itertools.count(1)

    def to(self, request: Request) -> Response | None:
        """None to an acknowledgement. The first request without names for clusters, listeners or virtual hosts is for all of them,
        and is answered also where there is none: Envoy waits for that at its start.
        """
        kept, names = self._kept.get(request.type_url, {}), request.resource_names_subscribe
        is_first = request.type_url not in self._asked
        self._asked.add(request.type_url)
        is_for_all = is_first and request.type_url in (CLUSTER, LISTENER, SCOPE) and (not names or "*" in names)
        wanted = kept.values() if is_for_all else [kept[name] for name in names if name in kept]
        has = request.initial_resource_versions
        if has and request.type_url == SCOPE:
            wanted = []  # what a living Envoy has is as new as what was kept or newer, and so is what it has no more
        told = [one for one in wanted if one.name not in has]
        if not told and not is_for_all:
            return None
        return Response(type_url=request.type_url, nonce=str(next(self._nonces)), resources=told)


async def _is_taken(line: grpc.aio.Channel) -> bool:
    """Whether the other side takes the connection, or refuses it."""
    state = line.get_state(try_to_connect=True)
    while state not in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
        await line.wait_for_state_change(state)
        state = line.get_state()
    return state is grpc.ChannelConnectivity.READY


async def _collect(incoming: AsyncIterator[Request], said: asyncio.Queue[Request | None]) -> None:
    """Until there is no more, which None says."""
    while (request := await anext(incoming, None)) is not None:
        said.put_nowait(request)
    said.put_nowait(None)


async def _waiting(said: asyncio.Queue[Request | None]) -> AsyncGenerator[Request, None]:
    """The next one, and all that were said by then. None ends it, and what comes after None is none."""
    request = await said.get()
    while request is not None:
        yield request
        if said.empty():
            return
        request = said.get_nowait()
    said.put_nowait(None)


async def _just(request: Request) -> Request | None:
    return request


async def _next(incoming: AsyncIterator[Request]) -> Request | None:
    return await anext(incoming, None)


async def run(relay: Relay, address: str) -> None:
    """Until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await relay.start(address)
    log.info("the relay listens on %s", address)
    await ended.wait()
    await relay.stop()


def main() -> None:
    keep_private()
    parser = argparse.ArgumentParser(
        prog="python -m serving.traffic.control_plane.relay", description=__doc__.splitlines()[0]
    )
    parser.add_argument("gateway", help="its name")
    parser.add_argument("--listen", required=True, metavar="unix:/PATH", help="where its Envoy calls")
    parser.add_argument("--file", required=True, type=Path, help="where what Envoy took is kept")
    parser.add_argument("--control-planes", required=True, metavar="ADDRESSES", help="with commas between them")
    for name in ("certificate", "key", "authority"):
        parser.add_argument(f"--{name}", default="", metavar="FILE")
    said = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    files = (said.certificate, said.key, said.authority)
    planes = tuple(one.strip() for one in said.control_planes.split(","))
    try:
        if not Address.at(said.listen).path:
            raise ValueError(f"--listen must be {UNIX}/path: who reaches it can say that it is the gateway")
        for one in planes:
            Address.at(one)
        if any(files) and not all(files):
            raise ValueError("--certificate, --key and --authority go together")
    except ValueError as problem:
        parser.error(str(problem))
    relay = Relay(SnapshotFile(said.file, said.gateway), planes, TlsFiles(*files) if all(files) else None)
    asyncio.run(run(relay, said.listen))


if __name__ == "__main__":
    main()
