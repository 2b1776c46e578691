"""Load on a real gateway, open and closed loop, and small models whose capacity is known: for tests and measurements of overload."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.core.routes import Arm, Endpoint
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.gateway_rig import MODEL, Rig
from tests.triton_rig import local_launcher

#: A user waits no longer than this for an answer.
GIVE_UP_S = 3.0
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()

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


@contextlib.contextmanager
def triton(folder: Path, model: Model) -> Iterator[Endpoint]:
    """A real server of this model."""
    blobs = MemoryBlobs()
    (folder / "servers").mkdir(parents=True)
    batching = {"preferred_batch_size": [], "max_queue_delay_us": 0}
    document = made.manifest(
        blobs,
        MODEL,
        {"artifact/model.py": _MODEL.replace("SECONDS", model.seconds).encode()},
        made.serving(max_batch_size=model.max_batch_size, dynamic_batching=batching),
        backend="python",
    )
    with local_launcher(folder, blobs) as launcher:
        running = launcher.start(launch_spec(document, launcher.folder_for(1, MODEL, "r1")))
        launcher.await_loaded(running, MODEL, timeout_s=60)
        yield Endpoint(running.host, running.http_port, running.grpc_port)


def stable(at: Endpoint, over_http: int) -> Arm:
    """Stable on this server, with a bound of so many requests in flight over HTTP."""
    return Arm("r1", Rig.STABLE, (at,), 2 * over_http)


@dataclass(frozen=True)
class Call:
    """One request: when it was due (seconds from the start), how long it took, and its status; 0 is no answer in time."""

    at_s: float
    took_s: float
    status: int


class Lines:
    """Connections to the gateway, opened when they are needed and used again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._head = (
            f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: gateway\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
        )

    async def ask(self) -> int:
        """The status of one request; 0 where no whole answer came."""
        try:
            reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return 0
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
            return 0
        if b"connection: close" in head:  # a request that is refused before it was read ends its connection
            writer.close()
        else:
            self._idle.append((reader, writer))
        return int(head.split()[1])

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


def open_loop(port: int, phases: Sequence[tuple[float, float]], seed: int = 1) -> list[list[Call]]:
    """The calls of each phase, a list of (requests a second, seconds): users come at random and never wait for each other."""
    return asyncio.run(_open_loop(port, phases, random.Random(seed)))


async def _open_loop(port: int, phases: Sequence[tuple[float, float]], chance: random.Random) -> list[list[Call]]:
    lines, found, running = Lines(port), [[] for _ in phases], set()
    began = time.monotonic()

    async def one(calls: list[Call], due_s: float) -> None:
        status = await lines.ask()
        calls.append(Call(due_s, time.monotonic() - began - due_s, status))

    due_s = end_s = 0.0
    for calls, (rate, seconds) in zip(found, phases, strict=True):
        end_s += seconds
        while (due_s := due_s + chance.expovariate(rate)) < end_s:
            await asyncio.sleep(began + due_s - time.monotonic())
            running.add(task := asyncio.create_task(one(calls, due_s)))
            task.add_done_callback(running.discard)
        due_s = end_s
    await asyncio.gather(*running)
    lines.close()
    return found


def closed_loop(port: int, clients: int, seconds: float) -> list[Call]:
    """The calls of so many users who each ask again as soon as they are answered."""
    return asyncio.run(_closed_loop(port, clients, seconds))


async def _closed_loop(port: int, clients: int, seconds: float) -> list[Call]:
    lines, calls, began = Lines(port), [], time.monotonic()

    async def user() -> None:
        while (at_s := time.monotonic() - began) < seconds:
            status = await lines.ask()
            calls.append(Call(at_s, time.monotonic() - began - at_s, status))

    await asyncio.gather(*(user() for _ in range(clients)))
    lines.close()
    return calls
