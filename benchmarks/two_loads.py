"""Two load gates on one machine: the second waits, and each measures what it measures alone. Without the lease they measure each other.

Run `python -m benchmarks.two_loads [--seconds 15] [--rounds 3]`; some minutes. Two real Tritons with a model that computes for
WORK_MS on one core, each asked at RATE_PER_S: each round first one gate alone after the other, then both at once as the gates' worker
runs them, behind the machine's lease in a PostgreSQL of its own, then both at once without it. Latencies are in milliseconds; the
ratio is to the median of those measured alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.stores import database

RATE_PER_S, WORK_MS = 10, 30
CODE = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()) for request in requests]

    def answer(self, x):
        until = time.thread_time() + WORK_S
        while time.thread_time() < until:
            pass
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", 2 * x)])
"""


class Loads:
    """Two running servers, and the load gate on each."""

    def __init__(self, launcher: Any, blobs: Any, seconds: float) -> None:
        from serving.servers.adapters.triton import TritonServer
        from tests.contracts import serving_models as made
        from validators.core.policy import parse_policy
        from validators.execution.gates import GateContext

        load = {"rate_per_s": RATE_PER_S, "duration_s": seconds, "burst_s": 0, "undecided": "allow"}
        code = CODE.replace("WORK_S", str(WORK_MS / 1000)).encode()
        self.contexts = []
        for name in ("one", "other"):
            manifest = made.manifest(blobs, name, {"artifact/model.py": code}, made.serving(), backend="python")
            running = launcher.start(made.launch_spec(manifest, launcher.folder_for(len(self.contexts), name, "r1")))
            launcher.await_loaded(running, name, timeout_s=60)
            self.contexts.append(
                GateContext(
                    model=name, release="r1", serving=manifest["serving"], envelope={}, contract={},
                    policy=parse_policy({"gates": ["load"], "load": load}),
                    server=TritonServer(running.host, running.http_port, running.grpc_port), timings={},
                    progress=lambda done, total: None,
                )
            )  # fmt: skip

    def measured(self, context: Any, machine: Any) -> dict[str, float]:
        from validators.execution.gates import run_gate

        with machine:
            found: dict[str, float] = run_gate("load", context).evidence["latency_ms"]
        return found

    def at_once(self, machine_of: Callable[[str], Any]) -> list[dict[str, float]]:
        """Both gates, begun at the same time."""
        found: dict[str, dict[str, float]] = {}

        def one(context: Any) -> None:
            from django.db import connection

            try:
                found[context.model] = self.measured(context, machine_of(context.model))
            finally:
                connection.close()

        threads = [threading.Thread(target=one, args=(context,)) for context in self.contexts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[context.model] for context in self.contexts]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.two_loads", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15, help="of each load (15)")
    parser.add_argument("--rounds", type=int, default=3, help="(3)")
    said = parser.parse_args()
    with database(), tempfile.TemporaryDirectory() as folder:
        from tests.contracts.serving_models import MemoryBlobs
        from tests.support.rigs.triton_rig import local_launcher
        from validators.execution.exclusive import alone_on

        blobs, waits = MemoryBlobs(), list[str]()
        with local_launcher(Path(folder), blobs) as launcher:
            loads = Loads(launcher, blobs, said.seconds)
            rows: dict[str, list[dict[str, float]]] = {"alone": [], "both, by lease": [], "both, without": []}
            for _ in range(said.rounds):
                rows["alone"] += [loads.measured(one, nullcontext()) for one in loads.contexts]
                rows["both, by lease"] += loads.at_once(lambda who: alone_on("here", owner=who, say=waits.append))
                rows["both, without"] += loads.at_once(lambda who: nullcontext())
            for context in loads.contexts:
                context.server.close()
    alone = {share: statistics.median(one[share] for one in rows["alone"]) for share in ("p50", "p95")}
    print("| gates | p50 | of alone | p95 | of alone |\n|---|---|---|---|---|")
    for name, found in rows.items():
        cells = []
        for share in ("p50", "p95"):
            values = sorted(one[share] for one in found)
            cells += [
                f"{statistics.median(values):.1f}",
                f"{values[0] / alone[share]:.2f} to {values[-1] / alone[share]:.2f}",
            ]
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"\nThe second said: {waits[0] if waits else 'nothing'} ({len(waits)} times)")


if __name__ == "__main__":
    main()
