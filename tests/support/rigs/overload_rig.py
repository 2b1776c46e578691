"""Load on a real gateway, open and closed loop, over HTTP and gRPC, and small models whose capacity is known: for tests and
measurements of overload."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from serving.traffic.core.routes import Arm, ServerAddress
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.rigs.gateway_rig import MODEL, Rig
from tests.support.rigs.triton_rig import local_launcher

#: A user waits no longer than this for an answer.
GIVE_UP_S = 3.0
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()


def message(*row: float) -> bytes:
    """The same over gRPC; four numbers, or four times the one."""
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 4])
    raw = np.resize(np.array(row, np.float32), 4).tobytes()
    asked = service_pb2.ModelInferRequest(model_name=MODEL, inputs=[tensor], raw_input_contents=[raw])
    return bytes(asked.SerializeToString())


MESSAGE = message(1, 2, 3, 4)

_MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        n = len(requests)
        time.sleep(SECONDS)
        x = [pb_utils.get_input_tensor_by_name(one, "x").as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", (2 * one).astype(np.float32))]) for one in x]
"""


@dataclass(frozen=True)
class Model:
    """`seconds`: how long a batch of n requests takes, in Python."""

    name: str
    seconds: str
    max_batch_size: int


#: One at a time, 20 ms each: 50 a second, whatever waits.
FIFO = Model("FIFO, 20 ms", "0.02", 1)
#: One by one 60 a second, in batches of eight 20 a second: once a queue has formed, it never empties under the same load.
METASTABLE = Model("batches, metastable", "n / (60 - 40 * (n - 1) / 7)", 8)


def python_model(seconds: str) -> bytes:
    """model.py that doubles; `seconds` as `Model` has them."""
    return _MODEL.replace("SECONDS", seconds).encode()


def manifest(model: Model, blobs: MemoryBlobs) -> dict[str, Any]:
    """The release that serves this model; it declares no bound of its own."""
    batching = {"preferred_batch_size": [], "max_queue_delay_us": 0}
    return made.manifest(
        blobs,
        MODEL,
        {"artifact/model.py": python_model(model.seconds)},
        made.serving(max_batch_size=model.max_batch_size, dynamic_batching=batching),
        backend="python",
    )


@contextlib.contextmanager
def triton(folder: Path, model: Model) -> Iterator[ServerAddress]:
    """A real server of this model."""
    blobs = MemoryBlobs()
    (folder / "servers").mkdir(parents=True)
    document = manifest(model, blobs)
    with local_launcher(folder, blobs) as launcher:
        running = launcher.start(launch_spec(document, launcher.folder_for(1, MODEL, "r1")))
        launcher.await_loaded(running, MODEL, timeout_s=60)
        yield ServerAddress(running.host, running.http_port, running.grpc_port)


def stable(at: ServerAddress, over_http: int) -> Arm:
    """Stable on this server, with a bound of so many requests in flight over HTTP."""
    return Arm("r1", Rig.STABLE, (at,), 2 * over_http)


@dataclass(frozen=True)
class Call:
    """One request: when it was due (seconds from the start), how long it took, and its status; 0 is no answer in time.

    Over gRPC: 200 is OK, 429 is RESOURCE_EXHAUSTED, anything else is 503. `has_term`: it was told when to come again.
    """

    at_s: float
    took_s: float
    status: int
    has_term: bool = False


class Users(Protocol):
    """Callers of one gateway, as many at once as ask."""

    async def ask(self) -> tuple[int, bool]:
        """(status, whether `retry-after` came with it) of one request, as `Call` has them."""
        ...

    async def close(self) -> None: ...


class Lines:
    """Connections to the gateway, opened when they are needed and used again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._head = (
            f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: gateway\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
        )

    async def ask(self) -> tuple[int, bool]:
        try:
            reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return 0, False
        try:
            async with asyncio.timeout(GIVE_UP_S):
                writer.write(self._head + BODY)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if b"content-length:" in head:
                    await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
                else:
                    while size := int(await reader.readline(), 16):
                        await reader.readexactly(size + 2)
                    await reader.readline()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            writer.close()
            return 0, False
        if b"connection: close" in head:  # a request that is refused before it was read ends its connection
            writer.close()
        else:
            self._idle.append((reader, writer))
        return int(head.split()[1]), b"\r\nretry-after:" in head

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


class Channel:
    """One HTTP/2 connection to the gateway, for all callers over gRPC."""

    _STATUS = {grpc.StatusCode.RESOURCE_EXHAUSTED: 429, grpc.StatusCode.DEADLINE_EXCEEDED: 0}

    def __init__(self, port: int) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self._infer = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

    async def ask(self) -> tuple[int, bool]:
        try:
            await self._infer(MESSAGE, timeout=GIVE_UP_S)
        except grpc.aio.AioRpcError as error:
            told = {**dict(error.initial_metadata() or ()), **dict(error.trailing_metadata() or ())}
            return self._STATUS.get(error.code(), 503), "retry-after" in told
        return 200, False

    async def close(self) -> None:
        await self._channel.close()


def open_loop(
    port: int, phases: Sequence[tuple[float, float]], seed: int = 1, *, users: Callable[[int], Users] = Lines
) -> list[list[Call]]:
    """The calls of each phase, a list of (requests a second, seconds): users come at random and never wait for each other."""
    return asyncio.run(_open_loop(port, phases, random.Random(seed), users))


async def _open_loop(
    port: int, phases: Sequence[tuple[float, float]], chance: random.Random, users: Callable[[int], Users]
) -> list[list[Call]]:
    lines, found, running = users(port), [[] for _ in phases], set()
    began = time.monotonic()

    async def one(calls: list[Call], due_s: float) -> None:
        status, has_term = await lines.ask()
        calls.append(Call(due_s, time.monotonic() - began - due_s, status, has_term))

    due_s = end_s = 0.0
    for calls, (rate, seconds) in zip(found, phases, strict=True):
        end_s += seconds
        while (due_s := due_s + chance.expovariate(rate)) < end_s:
            await asyncio.sleep(began + due_s - time.monotonic())
            running.add(task := asyncio.create_task(one(calls, due_s)))
            task.add_done_callback(running.discard)
        due_s = end_s
    await asyncio.gather(*running)
    await lines.close()
    return found


def closed_loop(port: int, clients: int, seconds: float) -> list[Call]:
    """The calls of so many users over HTTP who each ask again as soon as they are answered."""
    return asyncio.run(_closed_loop(port, clients, seconds))


async def _closed_loop(port: int, clients: int, seconds: float) -> list[Call]:
    lines, calls, began = Lines(port), [], time.monotonic()

    async def user() -> None:
        while (at_s := time.monotonic() - began) < seconds:
            status, has_term = await lines.ask()
            calls.append(Call(at_s, time.monotonic() - began - at_s, status, has_term))

    await asyncio.gather(*(user() for _ in range(clients)))
    await lines.close()
    return calls
