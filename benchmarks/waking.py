"""How long a model that sleeps takes to answer again: its files on the node, as they are, beside a node that has to fetch them first.

Run `python -m benchmarks.waking [--mib 256] [--link-mib-per-s 119] [--times 3]`, a minute. A real Triton is launched as an agent does it,
for a release whose one file has so many MiB of weights: with an empty cache, behind a link of that speed (a gigabit by default), and with
what that left in the cache. Each copy is hashed before it is used, in both. Servers are started one after another; what else the machine
does shows in all of them alike, so read the ratio. With `--mib 1` what is left is the server's own start.

Printed: seconds of each part, medians: `start` (files fetched or linked, hashed, and the process started), `load`, `warm up`, and the sum.
What is not in it: the two seconds until the engine looks, the half second until the agent does, and placing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")

import django
import numpy as np

django.setup()

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from serving.servers.adapters.triton import TritonServer  # noqa: E402
from serving.targets.agent.warmup import warm_up  # noqa: E402
from tests.contracts import serving_models as made  # noqa: E402
from tests.support.rigs.triton_rig import local_launcher, start  # noqa: E402

PARTS: Final = ("start", "load", "warm up")
MODEL: Final = "weighty"


class Linked(made.MemoryBlobs):
    """A store behind a link: however many ranges are asked for at once, no more bytes a second come through."""

    def __init__(self, bytes_per_s: float) -> None:
        super().__init__()
        self._bytes_per_s, self._link = bytes_per_s, threading.Lock()

    def reader_of(self, sha256: str) -> Callable[[int, int], bytes]:
        read = super().reader_of(sha256)

        def slowly(begin: int, length: int) -> bytes:
            data = read(begin, length)
            with self._link:
                time.sleep(len(data) / self._bytes_per_s)
            return data

        return slowly


def weighty_graph(mib: int) -> bytes:
    """y = (x A) B, FP32[4], with a batch axis and so many MiB of weights."""
    inner = mib * 2**20 // 32
    a, b = np.ones((4, inner), np.float32), np.full((inner, 4), 1 / inner, np.float32)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    nodes = [helper.make_node("MatMul", ["x", "A"], ["xA"]), helper.make_node("MatMul", ["xA", "B"], ["y"])]
    weights = [numpy_helper.from_array(a, "A"), numpy_helper.from_array(b, "B")]
    return made.graph_bytes(helper.make_graph(nodes, MODEL, [x], [y], weights))


def brought_up(folder: Path, blobs: made.MemoryBlobs, manifest: dict[str, object]) -> tuple[float, float, float]:
    """Seconds of each part, of one server, which then ends."""
    with local_launcher(folder, blobs) as launcher:
        at = [time.monotonic()]
        running = start(launcher, manifest)
        at.append(time.monotonic())
        launcher.await_loaded(running, MODEL, timeout_s=300)
        at.append(time.monotonic())
        client = TritonServer(running.host, running.http_port, running.grpc_port)
        try:
            warm_up(client, MODEL, made.serving(), limits={}, timeout_s=60)
        finally:
            client.close()
        at.append(time.monotonic())
    return at[1] - at[0], at[2] - at[1], at[3] - at[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="of weights (256)")
    parser.add_argument("--link-mib-per-s", type=float, default=119.0, help="of the link to the store (119: a gigabit)")
    parser.add_argument("--times", type=int, default=3, help="of each (3)")
    given = parser.parse_args()
    blobs = Linked(given.link_mib_per_s * 2**20)
    manifest = made.manifest(blobs, MODEL, {"artifact/model.onnx": weighty_graph(given.mib)}, made.serving())
    found: dict[str, list[tuple[float, float, float]]] = {"cold": [], "files there": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        brought_up(folder, blobs, manifest)  # the machine's own caches know the programs from now on
        for _ in range(given.times):
            shutil.rmtree(folder / "cache")
            found["cold"].append(brought_up(folder, blobs, manifest))
            found["files there"].append(brought_up(folder, blobs, manifest))
    print(f"{given.mib} MiB, a link of {given.link_mib_per_s:g} MiB/s, medians of {given.times}")
    for what, runs in found.items():
        parts = " · ".join(f"{part} {median(run[at] for run in runs):.2f} s" for at, part in enumerate(PARTS))
        print(f"{what:>12}: {median(map(sum, runs)):.2f} s = {parts}")
    cold, there = (median(map(sum, runs)) for runs in found.values())
    print(f"waking takes {100 * there / cold:.0f} % of a cold start")


if __name__ == "__main__":
    main()
