"""Inference servers for tests that are none: they fail as they are told. With them, an event loop in a thread, and free ports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from serving.traffic.core.routes import ServerAddress
from sluicegate.stack import tcp_ports

MODEL = "sentiment"
#: Triton's own words.
FULL = "Exceeds maximum queue size"


def free_port() -> int:
    """One that is listened on later. None twice before all others were given: of the thousands that a run draws, some would meet."""
    while True:
        if not _to_give:
            _to_give.extend(random.SystemRandom().sample(tcp_ports.CHOICES, len(tcp_ports.CHOICES)))
        if tcp_ports.is_free(port := _to_give.pop()):
            return port


_to_give: list[int] = []


async def stop_listening(server: asyncio.Server) -> None:
    """Closes a server, which accepts no more some rounds before: Python 3.11 never closes a connection that was accepted just before."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(3):
        await asyncio.sleep(0)
    server.close()


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Any, timeout_s: float = 60.0) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def close(self) -> None:
        async def cancel_all() -> None:
            for _ in range(2):
                await asyncio.sleep(0.01)  # a handler that is cancelled before it begins closes nothing
                tasks = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for _ in range(5):  # transports that were closed just now end in the next rounds of the loop
                    await asyncio.sleep(0)

        self.run(cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()


@dataclass
class Backend:
    """One inference server. `mode`: ok · error (HTTP 500, INTERNAL) · unavailable (503, UNAVAILABLE) · unknown (503, gRPC UNKNOWN)
    · lost (404, NOT_FOUND) · hang · cut (connection closed unanswered, UNAVAILABLE) · bad_input (400, INVALID_ARGUMENT)
    · full (503, UNAVAILABLE, as Triton says that a queue is full)."""

    loop: Loop
    name: str
    mode: str = "ok"
    delay_s: float = 0.0
    address: str = "127.0.0.1"
    hits: int = 0
    head: bytes = b""  # of the last HTTP request, in lower case
    http_port: int = field(default_factory=free_port)
    grpc_port: int = field(default_factory=free_port)
    _servers: list[Any] = field(default_factory=list)
    _writers: set[Any] = field(default_factory=set)
    _handlers: set[asyncio.Task[None]] = field(default_factory=set)
    _free: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._free.set()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nobody is answered in the meantime, however long it lasts; requests that came are answered when it ends."""
        self.loop.run(self._let(False))
        try:
            yield
        finally:
            self.loop.run(self._let(True))

    async def _let(self, is_free: bool) -> None:
        (self._free.set if is_free else self._free.clear)()

    @property
    def endpoint(self) -> ServerAddress:
        return ServerAddress(self.address, self.http_port, self.grpc_port)

    def start(self) -> Backend:
        self.loop.run(self._start())
        return self

    def stop(self) -> None:
        """From now on connections are refused, and those there are end."""
        self.loop.run(self._stop())

    async def _start(self) -> None:
        http_server = await asyncio.start_server(self._connected, self.address, self.http_port, limit=2**27)
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)])
        handler = grpc.unary_unary_rpc_method_handler(
            self._grpc,
            request_deserializer=service_pb2.ModelInferRequest.FromString,
            response_serializer=service_pb2.ModelInferResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": handler}),)
        )
        server.add_insecure_port(f"{self.address}:{self.grpc_port}")
        await server.start()
        self._servers = [http_server, server]

    async def _stop(self) -> None:
        if not self._servers:
            return
        http_server, server = self._servers
        self._servers = []
        await stop_listening(http_server)
        await server.stop(0)
        for _ in range(5):  # what was accepted just now has no writer yet: the gateway's port checks come all the time
            for writer in list(self._writers):
                writer.transport.abort()
            await asyncio.sleep(0)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Known from its first moment on, and closed even if its handler is cancelled before it begins."""
        self._writers.add(writer)
        handler = self.loop.loop.create_task(self._http(reader, writer))
        self._handlers.add(handler)

        def over(_: asyncio.Task[None]) -> None:
            self._handlers.discard(handler)
            self._writers.discard(writer)
            writer.close()

        handler.add_done_callback(over)

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lower = self.head = head.lower()
                if b"content-length:" in lower:
                    await reader.readexactly(int(lower.split(b"content-length:")[1].split(b"\r\n")[0]))
                elif b"transfer-encoding: chunked" in lower:
                    while size := int(await reader.readline(), 16):
                        await reader.readexactly(size + 2)
                    await reader.readline()
                self.hits += 1
                await asyncio.sleep(self.delay_s if self.mode != "hang" else 60)
                await self._free.wait()
                if self.mode == "cut":
                    writer.transport.abort()
                    return
                status = {
                    "error": "500 Internal Server Error",
                    "unavailable": "503 Service Unavailable",
                    "unknown": "503 Service Unavailable",
                    "bad_input": "400 Bad Request",
                    "lost": "404 Not Found",
                    "full": "503 Service Unavailable",
                }
                body = json.dumps(
                    {"error": FULL} if self.mode == "full" else {"model_name": MODEL, "outputs": [], "by": self.name},
                    separators=(",", ":"),
                ).encode()
                line = status.get(self.mode, "200 OK")
                writer.write(
                    f"HTTP/1.1 {line}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass

    async def _grpc(self, request: Any, context: Any) -> Any:
        self.hits += 1
        await asyncio.sleep(self.delay_s if self.mode != "hang" else 60)
        await self._free.wait()
        codes = {
            "error": grpc.StatusCode.INTERNAL,
            "unavailable": grpc.StatusCode.UNAVAILABLE,
            "unknown": grpc.StatusCode.UNKNOWN,
            "cut": grpc.StatusCode.UNAVAILABLE,
            "bad_input": grpc.StatusCode.INVALID_ARGUMENT,
            "lost": grpc.StatusCode.NOT_FOUND,
            "full": grpc.StatusCode.UNAVAILABLE,
        }
        if self.mode in codes:
            await context.abort(codes[self.mode], FULL if self.mode == "full" else f"{self.name} is told to fail")
        return service_pb2.ModelInferResponse(model_name=request.model_name, id=self.name)
