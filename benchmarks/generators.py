"""What the load generator brings over each protocol, from one process and from two, on one stub that answers at once.

Run `python -m benchmarks.generators [--seconds 3] [--rounds 3]`; some minutes. The stub is a process of its own, with as little work as
an answer takes. For each protocol and count of processes: the greatest rate of RATES up to which the load gate would not say that the
generator was late, in one of so many rounds at least; and at COST_AT_PER_S the CPU time for each request. The ratios are of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from typing import Any

import numpy as np

RATES = [round(100 * 1.25**at) for at in range(22)]
COST_AT_PER_S, MAX_LAG_MS = 500, 20
COUNTS = (1, 2)
_HTTP_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class Answers(asyncio.Protocol):
    """An answer to every HTTP request, each of which comes as a head that tells the length of its body."""

    def __init__(self) -> None:
        self.unread = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.unread += data
        while (end := self.unread.find(b"\r\n\r\n")) >= 0:
            head = self.unread[:end].lower()
            length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0]) if b"content-length: " in head else 0
            if len(self.unread) < end + 4 + length:
                return
            self.unread = self.unread[end + 4 + length :]
            self.transport.write(_HTTP_ANSWER)


async def stub() -> None:
    """Serves for ever, once it has told its two ports."""
    import grpc

    async def answer(request: bytes, context: Any) -> bytes:
        return b""

    web = await asyncio.get_running_loop().create_server(Answers, "127.0.0.1", 0)
    server = grpc.aio.server()
    calls = {name: grpc.unary_unary_rpc_method_handler(answer) for name in ("ModelInfer", "ServerLive")}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", calls),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(web.sockets[0].getsockname()[1], port, flush=True)
    await server.wait_for_termination()


class Bench:
    """The stub, and loads on it."""

    def __init__(self, http_port: int, grpc_port: int, seconds: float, rounds: int) -> None:
        from serving.servers.adapters.triton import TritonServer

        self.seconds, self.rounds = seconds, rounds
        self.server = TritonServer("127.0.0.1", http_port, grpc_port)

    def load(self, protocol: str, count: int, rate_per_s: float) -> tuple[bool, float]:
        """(whether it kept its schedule, CPU seconds for each request)."""
        from validators.core.load import arrivals, generator_limit, summarise
        from validators.execution.runners.generators import Generators
        from validators.execution.runners.load import drive

        generators = Generators(count)
        requests = self.server.prepared("m", [{"x": np.ones((1, 64), np.float32)}], protocol=protocol)
        schedule = arrivals(rate_per_s, self.seconds, seed=1)
        attempts = drive(requests, schedule, timeout_s=10, progress=lambda sent: None, generators=generators)
        summary = summarise(attempts, duration_s=self.seconds, slo_ms=float("inf"))
        return not summary.errors and not generator_limit(summary, max_lag_ms=MAX_LAG_MS), generators.cost_s

    def greatest(self, protocol: str, count: int) -> int:
        best = 0
        for rate in RATES:
            if not any(self.load(protocol, count, rate)[0] for _ in range(self.rounds)):
                break
            best = rate
        return best

    def table(self) -> None:
        from serving.ports import GRPC, HTTP

        found = {
            (protocol, count): (self.greatest(protocol, count), self.load(protocol, count, COST_AT_PER_S)[1])
            for protocol in (GRPC, HTTP)
            for count in COUNTS
        }
        first_rate, first_cost = found[GRPC, COUNTS[0]]
        if not first_rate:
            raise SystemExit("This machine is too busy: not even the least rate was kept.")
        print(
            "| protocol | processes | greatest rate | of the first | CPU time a request | of the first |\n|---|---|---|---|---|---|"
        )
        for (protocol, count), (rate, cost_s) in found.items():
            shares = f"{rate / first_rate:.2f} | {cost_s * 1000:.3f} ms | {cost_s / first_cost:.2f}"
            print(f"| {protocol} | {count} | {rate}/s | {shares} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generators", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3, help="of each load (3)")
    parser.add_argument("--rounds", type=int, default=3, help="(3)")
    parser.add_argument("--stub", action="store_true", help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.stub:
        import uvloop

        uvloop.run(stub())
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.generators", "--stub"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        http_port, grpc_port = map(int, process.stdout.readline().split())
        Bench(http_port, grpc_port, said.seconds, said.rounds).table()
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
