"""What the sandbox costs: servers shut in against plain ones, in pairs, all alive at once.

Run `python -m benchmarks.containment [--rounds 15] [--requests 150]`. For each way that this machine grants: how long a server takes from
its start to loaded, and how many requests a second it answers over HTTP and gRPC, as ratios to a server without any layer that was measured
just before or after. Printed is the median ratio with the quartiles. The model is a graph that doubles numbers, asked by two
connections, so that what the sandbox could cost is not hidden behind a model's own time.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from serving.ports import RunningServer
from serving.servers.adapters.triton import TritonServer
from serving.targets.agent import containment
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.launcher import LocalLauncher
from tests.contracts import serving_models as made

MODEL = "doubling"
CONNECTIONS = 2
BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}]}
).encode()


def ways(servers: Path) -> dict[str, tuple[str, ...]]:
    """The best that this user gets here, and what poorer machines would grant."""
    best = containment.find_granted(made.VENV, servers)
    found = {best.layers, *containment.ways(is_root=False)}
    granted = (layers for layers in found if layers and not containment.try_layers(layers, made.VENV, servers))
    return {"+".join(layers): layers for layers in granted}


class Contestant:
    """One way of starting servers."""

    def __init__(self, folder: Path, layers: tuple[str, ...], blobs: made.MemoryBlobs) -> None:
        self._launcher = LocalLauncher(
            servers=folder / "servers", venv=made.VENV, blobs=BlobCache(folder / "cache", blobs), layers=layers
        )
        self._manifest = made.doubling(blobs)
        self.server = self._start()

    def _start(self) -> RunningServer:
        spec = made.launch_spec(self._manifest, self._launcher.folder_for(1, MODEL, "r1"))
        running = self._launcher.start(spec)
        self._launcher.await_loaded(running, MODEL, timeout_s=60)
        return running

    def start_s(self) -> float:
        """A fresh server in place of the one that was there: seconds until it is loaded."""
        self._launcher.stop(self.server, grace_s=10)
        began = time.monotonic()
        self.server = self._start()
        return time.monotonic() - began

    def close(self) -> None:
        self._launcher.sweep(set())


def over_http(server: RunningServer, requests: int) -> None:
    line = http.client.HTTPConnection(server.host, server.http_port, timeout=10)
    for _ in range(requests):
        line.request("POST", f"/v2/models/{MODEL}/infer", BODY, {"Content-Type": "application/json"})
        answer = line.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the server answered {answer.status}")
    line.close()


def over_grpc(server: RunningServer, requests: int) -> None:
    client = TritonServer(server.host, server.http_port, server.grpc_port)
    for _ in range(requests):
        client.infer(MODEL, {"x": np.ones((1, 4), np.float32)}, timeout_s=10)
    client.close()


def per_s(ask: Callable[[RunningServer, int], None], server: RunningServer, requests: int) -> float:
    """Answers a second of two connections that ask at once."""
    threads = [threading.Thread(target=ask, args=(server, requests)) for _ in range(CONNECTIONS)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return CONNECTIONS * requests / (time.monotonic() - began)


def compare(plain: Contestant, other: Contestant, rounds: int, requests: int) -> dict[str, list[float]]:
    """Ratios of the other to the plain one, whose turn comes first every second time."""
    measures: dict[str, Callable[[Contestant], float]] = {
        "start": lambda one: one.start_s(),
        "http": lambda one: per_s(over_http, one.server, requests),
        "grpc": lambda one: per_s(over_grpc, one.server, requests),
    }
    ratios: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds):
        for name, measure in measures.items():
            if name == "start" and number % 3:
                continue  # a stop takes seconds
            pair = (plain, other) if number % 2 else (other, plain)
            found = {one: measure(one) for one in pair}
            ratios[name].append(found[other] / found[plain])
    return ratios


def _quartiles(ratios: list[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=150, help="of each connection in a round")
    told = parser.parse_args()
    blobs = made.MemoryBlobs()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        contestants = {"none": Contestant(folder / "none", (), blobs)}
        try:
            for tier, layers in ways(folder / "trials").items():
                contestants[tier] = Contestant(folder / tier, layers, blobs)
            print(f"as {'root' if os.getuid() == 0 else 'an ordinary user'}, {told.rounds} rounds; ratios to none")
            print(
                "| containment | start to loaded | HTTP answers a second | gRPC answers a second |\n|---|---|---|---|"
            )
            for tier, contestant in contestants.items():
                if tier != "none":
                    ratios = compare(contestants["none"], contestant, told.rounds, told.requests)
                    print(f"| `{tier}` | {' | '.join(_quartiles(ratios[one]) for one in ratios)} |", flush=True)
        finally:
            for contestant in contestants.values():
                contestant.close()


if __name__ == "__main__":
    main()
