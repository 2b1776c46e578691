"""What the gateway costs beside a plain Envoy: processor time and latency of a good request, on one real Triton.

Run `python -m benchmarks.gateway_overhead [--starts 3] [--repeats 6] [--requests 1000] [--json FILE]`. It needs `h2load`, of Debian's
package `nghttp2-client`. About three minutes for each start.

Four doors lead to the same server: a plain Envoy for HTTP and one for gRPC, the gateway, and a gateway in a rollout (the candidate has
half of the traffic; it is a second name of the same server). For each start all processes are new, because a process has a bias of its
own. For each repeat the doors are asked in a drawn order, while all others are stopped (SIGSTOP). A cell is so many requests at 16 at
a time, whose processor time is read from `schedstat`, and a fifth of them at 1 at a time. Every answer must have status 200.

Ratios compare a gateway's cell with the plain Envoy's of the same repeat: the median over all repeats, with the quartiles.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")

import django
from django.conf import settings

django.setup()

from benchmarks.overload import plain_envoy  # noqa: E402
from serving.traffic.core.routes import Arm, Limits, ServerAddress  # noqa: E402
from tests.contracts import serving_models as made  # noqa: E402
from tests.support.rigs.gateway_rig import MODEL, Rig, free_port, rig, wait_until  # noqa: E402
from tests.support.rigs.hostile_rig import METHOD  # noqa: E402
from tests.support.rigs.triton_rig import local_launcher, start  # noqa: E402
from tests.support.servers.hostile import GOOD, good_message  # noqa: E402

HTTP, GRPC = "HTTP", "gRPC"
PLAIN, GATEWAY, ROLLOUT = "plain Envoy", "gateway", "gateway in a rollout"
#: As the product starts its gateway (`sluicegate/stack/machine.py`).
WORKERS = 2
_AT_ONCE = 16
#: The largest ratios that are promised: processor time at 16 at a time, median latency at 16 and at 1.
GOALS = {"cpu_16": 1.7, "p50_16": 1.25, "p50_1": 1.12}


@dataclass(frozen=True)
class Door:
    """One Envoy process and the port at which it takes requests."""

    name: str
    protocol: str
    pid: int
    port: int


@dataclass(frozen=True)
class Cell:
    """Processor time of a request in µs at 16 at a time; median latencies in ms at 16 and at 1 at a time."""

    cpu_16: float
    p50_16: float
    p50_1: float


def cpu_ns(pid: int) -> int:
    """Time that all threads of a process have run. Source: Linux's Documentation/scheduler/sched-stats, /proc/<pid>/schedstat."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((one / "schedstat").read_text().split()[0]) for one in tasks.iterdir())


def load(door: Door, folder: Path, requests: int, at_once: int) -> float:
    """Sends requests, one by one on each of so many connections. Returns the median latency in ms. Raises AssertionError."""
    log, body = folder / "h2load.log", folder / door.protocol
    log.unlink(missing_ok=True)
    argv = [
        "h2load",
        "-t",
        "1",
        "-c",
        str(at_once),
        "-m",
        "1",
        "-n",
        str(requests),
        "-d",
        str(body),
        f"--log-file={log}",
    ]
    if door.protocol == HTTP:
        argv += ["--h1", f"http://127.0.0.1:{door.port}/v2/models/{MODEL}/infer"]
    else:
        argv += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"http://127.0.0.1:{door.port}{METHOD}"]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    rows = [line.split() for line in log.read_text().splitlines()]
    assert len(rows) == requests and all(row[1] == "200" for row in rows), f"{door.name}: not all were answered 200"
    return statistics.median(int(row[2]) for row in rows) / 1000


def cell(door: Door, folder: Path, requests: int) -> Cell:
    os.kill(door.pid, signal.SIGCONT)
    try:
        load(door, folder, _AT_ONCE * 4, _AT_ONCE)
        before = cpu_ns(door.pid)
        many = load(door, folder, requests, _AT_ONCE)
        used = cpu_ns(door.pid) - before
        return Cell(used / requests / 1000, many, load(door, folder, max(20, requests // 5), 1))
    finally:
        os.kill(door.pid, signal.SIGSTOP)


@contextlib.contextmanager
def plain(folder: Path, at: ServerAddress, protocol: str) -> Iterator[Door]:
    port, file = free_port(), folder / f"plain-{protocol}.json"
    file.write_text(json.dumps(plain_envoy(port, at, protocol)))
    argv = [
        str(settings.ENVOY_BINARY),
        "-c",
        str(file),
        "--disable-hot-restart",
        "--concurrency",
        str(WORKERS),
        "-l",
        "off",
    ]
    process = subprocess.Popen(argv)
    try:
        yield Door(PLAIN, protocol, process.pid, port)
    finally:
        process.kill()
        process.wait(60)


@contextlib.contextmanager
def gateway(folder: Path, at: ServerAddress, *, in_rollout: bool) -> Iterator[list[Door]]:
    """The product's gateway before the server: a latency guard, a bound, and where it is in a rollout half of the traffic drawn."""
    folder.mkdir()
    with rig(folder) as parts:
        parts.envoy.stop()
        parts.envoy.start(WORKERS)
        limits = Limits(timeout_s=10.0, attempt_timeout_s=10.0)
        arms = [Arm(name, digest, (at,), 64) for name, digest in (("r1", Rig.STABLE), ("r2", Rig.CANDIDATE))]
        candidate = arms[1] if in_rollout else None
        parts.apply(5000 if in_rollout else None, stable=arms[0], candidate=candidate, limits=limits, slow_ms=250.0)
        assert parts.envoy.pid
        name = ROLLOUT if in_rollout else GATEWAY
        yield [Door(name, protocol, parts.envoy.pid, parts.envoy.port) for protocol in (HTTP, GRPC)]


def measure(folder: Path, repeats: int, requests: int) -> list[dict[tuple[str, str], Cell]]:
    """One start of all processes. Returns the cells of each repeat."""
    blobs = made.MemoryBlobs()
    with contextlib.ExitStack() as held:
        launcher = held.enter_context(local_launcher(folder / "triton", blobs))
        manifest = made.doubling(blobs, MODEL)
        running = start(launcher, manifest)
        launcher.await_loaded(running, MODEL, timeout_s=60)
        at = ServerAddress(running.host, running.http_port, running.grpc_port)
        doors = [held.enter_context(plain(folder, at, protocol)) for protocol in (HTTP, GRPC)]
        for in_rollout in (False, True):
            doors += held.enter_context(gateway(folder / f"gateway-{in_rollout}", at, in_rollout=in_rollout))
        for door in doors:
            wait_until(lambda door=door: _answers(door, folder), f"the port of {door.name} ({door.protocol})")
        for door in doors:
            os.kill(door.pid, signal.SIGSTOP)
        found = []
        try:
            for _ in range(repeats):
                order = random.sample(doors, len(doors))
                found.append({(door.name, door.protocol): cell(door, folder, requests) for door in order})
        finally:
            for door in doors:
                os.kill(door.pid, signal.SIGCONT)
    return found


def _answers(door: Door, folder: Path) -> bool:
    with contextlib.suppress(subprocess.CalledProcessError, AssertionError, FileNotFoundError):
        return load(door, folder, 1, 1) > 0
    return False


def ratios(repeats: list[dict[tuple[str, str], Cell]], name: str, protocol: str, what: str) -> list[float]:
    return [getattr(one[name, protocol], what) / getattr(one[PLAIN, protocol], what) for one in repeats]


def table(repeats: list[dict[tuple[str, str], Cell]]) -> list[str]:
    """The rows of the report: each ratio as its median with the quartiles, and the processor time in µs of both."""
    lines = ["| | CPU at 16, µs | CPU ratio at 16 | p50 ratio at 16 | p50 ratio at 1 |", "|---|---|---|---|---|"]
    for name in (GATEWAY, ROLLOUT):
        for protocol in (HTTP, GRPC):
            own, bare = (statistics.median(one[of, protocol].cpu_16 for one in repeats) for of in (name, PLAIN))
            cells = [f"{own:.0f} beside {bare:.0f}"]
            for what in GOALS:
                low, middle, high = statistics.quantiles(ratios(repeats, name, protocol, what), n=4)
                cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
            lines.append(f"| {name}, {protocol} | " + " | ".join(cells) + " |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--starts", type=int, default=3, help="times that all processes are started (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=6, help="cells of each door in one start, at least 2")
    parser.add_argument("--requests", type=int, default=1000, help="requests of a cell at 16 at a time")
    parser.add_argument("--json", type=Path, help="write every cell there")
    given = parser.parse_args()
    if not shutil.which("h2load"):
        print("There is no h2load; install Debian's package nghttp2-client.", file=sys.stderr)
        return 2
    began, found = time.monotonic(), []
    for _ in range(given.starts):
        with tempfile.TemporaryDirectory(prefix="sluicegate-overhead-") as folder:
            (Path(folder) / HTTP).write_bytes(GOOD)
            message = good_message(MODEL)
            (Path(folder) / GRPC).write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
            found += measure(Path(folder), given.repeats, given.requests)
    if given.json:
        cells = [{f"{name}, {of}": vars(one) for (name, of), one in each.items()} for each in found]
        given.json.write_text(json.dumps(cells, indent=1) + "\n")
    print("\n".join(table(found)))
    print(
        f"{len(found)} repeats in {time.monotonic() - began:.0f} s. Promised at most: "
        + ", ".join(f"{k} {v}" for k, v in GOALS.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
