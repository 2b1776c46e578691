"""The demo's users: `python -m sluicegate.demo.traffic`, a process of its own.

Half ask over HTTP, half over gRPC. The loop is open: requests are due at seeded Poisson instants whether or not earlier
ones were answered, and latency counts from the instant at which a request was due, so that a stall is not hidden by
clients that wait for it. Nothing is ever tried again here: what the gateway answers is what the user got. Each request
becomes one JSON line in the log when it ends.

With `--measure SECONDS` the loop is closed instead, once: one request over each protocol is always under way, and
{"per_s": …, "answered": …, "failed": …, "error": …} is printed: the answers a second that this machine can give, how many
requests failed, and of what the first. These requests are in the log too, marked as the measurement's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import signal
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import grpc
import httpx
from tritonclient.grpc import service_pb2, service_pb2_grpc

from ledger.adapters.files import keep_private
from sluicegate.demo.corpus import Text, read_sentences, write_one

TIMEOUT_S = 15.0
RELEASE_HEADER, MODEL_KEY = "x-sluicegate-release", "x-sluicegate-model"
#: Pause after a failure while the capacity is measured: a broken gateway fails within a millisecond.
PAUSE_S = 0.5
#: Every second request goes over gRPC.
PROTOCOLS = ("http", "grpc")


@dataclass(frozen=True)
class Record:
    """One request as its user saw it. `at` is when it was due and `sent_at` when it left (Unix seconds)."""

    at: float
    sent_at: float
    latency_ms: float  # from `at` to the whole answer
    protocol: str
    kind: str
    ok: bool
    release: str
    error: str = ""
    is_measuring: bool = False  # sent to measure the capacity, not as a simulated user
    is_shed: bool = False  # the gateway refused it, because too many were under way


class Refused(Exception):
    """The answer is not one that a user can use."""


class Shed(Refused):
    """The gateway says that too many requests are under way, and nothing else."""


@dataclass(frozen=True)
class Measured:
    """How a closed loop ended. What was shed is in neither count; `error` is the first failure's, empty for none."""

    answered: int
    failed: int
    error: str
    seconds: float

    @property
    def per_s(self) -> float:
        return self.answered / self.seconds


class HttpUser:
    def __init__(self, url: str, model: str) -> None:
        self.client = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False)
        self.path = f"/v2/models/{model}/infer"

    async def ask(self, text: str) -> tuple[list[float], str]:
        """(probabilities, release). Raises Refused for anything but a 200 with one output."""
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [text]}]}
        response = await self.client.post(self.path, json=body)
        release = response.headers.get(RELEASE_HEADER, "")
        if response.status_code != 200:
            kind = Shed if response.status_code == 429 else Refused
            raise kind(f"HTTP {response.status_code}: {response.text[:200]}")
        output = next((o for o in response.json()["outputs"] if o["name"] == "probabilities"), None)
        if output is None:
            raise Refused("The answer lacks probabilities.")
        return [float(p) for p in output["data"]], release

    async def close(self) -> None:
        await self.client.aclose()


class GrpcUser:
    def __init__(self, address: str, model: str) -> None:
        self.channel = grpc.aio.insecure_channel(address)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        self.model = model

    async def ask(self, text: str) -> tuple[list[float], str]:
        """(probabilities, release). Raises Refused for any status but OK."""
        raw = text.encode()
        request = service_pb2.ModelInferRequest(model_name=self.model)
        request.inputs.add(name="text", datatype="BYTES", shape=[1, 1])
        request.raw_input_contents.append(struct.pack("<I", len(raw)) + raw)  # BYTES: a length, then the bytes
        call = self.stub.ModelInfer(request, timeout=TIMEOUT_S, metadata=((MODEL_KEY, self.model),))
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            kind = Shed if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED else Refused
            raise kind(f"gRPC {error.code().name}: {(error.details() or '')[:200]}") from error
        release = dict(await call.initial_metadata()).get(RELEASE_HEADER, "")
        for output, content in zip(answer.outputs, answer.raw_output_contents, strict=False):
            if output.name == "probabilities":
                return [value for (value,) in struct.iter_unpack("<f", content)], str(release)
        raise Refused("The answer lacks probabilities.")

    async def close(self) -> None:
        await self.channel.close()


User = HttpUser | GrpcUser


def check(probabilities: Sequence[float]) -> None:
    """Raises Refused unless these are two probabilities."""
    is_right = len(probabilities) == 2 and all(math.isfinite(p) and 0 <= p <= 1 for p in probabilities)
    if not is_right or abs(sum(probabilities) - 1) > 1e-3:
        raise Refused(f"A wrong answer: {probabilities}")


async def send(user: User, protocol: str, text: Text, due: float, *, is_measuring: bool = False) -> Record:
    """One request and its outcome; never raises."""
    sent, release, problem, is_shed = time.time(), "", "", False
    try:
        probabilities, release = await user.ask(text.text)
        check(probabilities)
    except (Refused, httpx.HTTPError, KeyError, TypeError, ValueError) as error:
        problem, is_shed = f"{type(error).__name__}: {error}", isinstance(error, Shed)
    latency_ms = (time.time() - due) * 1e3
    return Record(
        due,
        sent,
        latency_ms,
        protocol,
        text.kind,
        not problem,
        release,
        problem,
        is_measuring=is_measuring,
        is_shed=is_shed,
    )


async def run(
    users: Mapping[str, User], sentences: list[str], *, rate_per_s: float, seed: int, log: IO[str], stop: asyncio.Event
) -> None:
    """Sends until `stop` is set, then waits for what is under way."""
    chance = random.Random(seed)
    pending: set[asyncio.Task[None]] = set()
    due = time.time()
    number = 0

    async def one(protocol: str, text: Text, due: float) -> None:
        record = await send(users[protocol], protocol, text, due)
        log.write(json.dumps(asdict(record)) + "\n")
        log.flush()

    while not stop.is_set():
        due += chance.expovariate(rate_per_s)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stop.wait(), max(0.0, due - time.time()))
            break
        protocol = PROTOCOLS[number % len(PROTOCOLS)]
        task = asyncio.create_task(one(protocol, write_one(sentences, chance), due))
        pending.add(task)
        task.add_done_callback(pending.discard)
        number += 1
    await asyncio.gather(*pending)


async def measure(
    users: Mapping[str, User], sentences: list[str], *, seconds: float, seed: int, log: IO[str]
) -> Measured:
    """What is answered while every user asks again as soon as they are answered, and what fails meanwhile."""
    chance = random.Random(seed)
    began = time.time()
    records: list[Record] = []

    async def ask_on(protocol: str) -> None:
        while (due := time.time()) - began < seconds:
            record = await send(users[protocol], protocol, write_one(sentences, chance), due, is_measuring=True)
            records.append(record)
            log.write(json.dumps(asdict(record)) + "\n")
            if not record.ok:
                await asyncio.sleep(PAUSE_S)

    await asyncio.gather(*(ask_on(protocol) for protocol in users))
    failures = [record for record in records if not (record.ok or record.is_shed)]
    first = f"over {failures[0].protocol}: {failures[0].error}" if failures else ""
    return Measured(sum(record.ok for record in records), len(failures), first, time.time() - began)


async def _main(arguments: argparse.Namespace) -> None:
    keep_private()  # the log quotes what users asked
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    users: dict[str, Any] = {
        "http": HttpUser(arguments.http, arguments.model),
        "grpc": GrpcUser(arguments.grpc, arguments.model),
    }
    try:
        with arguments.log.open("a", encoding="utf-8") as log:
            sentences = read_sentences(arguments.golden)
            if arguments.measure:
                found = await measure(users, sentences, seconds=arguments.measure, seed=arguments.seed, log=log)
                told = {"answered": found.answered, "failed": found.failed, "error": found.error}
                print(json.dumps({"per_s": round(found.per_s, 2), **told}))
            else:
                await run(users, sentences, rate_per_s=arguments.rate, seed=arguments.seed, log=log, stop=stop)
    finally:
        for user in users.values():
            await user.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m sluicegate.demo.traffic", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--http", required=True, metavar="URL")
    parser.add_argument("--grpc", required=True, metavar="HOST:PORT")
    parser.add_argument("--model", required=True)
    parser.add_argument("--golden", required=True, type=Path, help="where sentences are taken from")
    parser.add_argument("--log", required=True, type=Path)
    parser.add_argument("--rate", type=float, default=22.0, help="requests per second, both protocols together")
    parser.add_argument("--measure", type=float, metavar="SECONDS", help="find out what can be served instead")
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
