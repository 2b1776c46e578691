"""What a broken candidate costs users, fault by fault: over HTTP and gRPC, while the control plane lives and when it is dead.

Run `python -m benchmarks.broken_candidate [--requests 10000] [--only hang,kill] [--clients 16]`. A real Envoy before two stub servers of
stable and two of the candidate, which has half of the traffic; both break, and nobody takes its weight away: what the engine would do in
seconds is left out. Users ask again as soon as they are answered. *Lost* are answers that are no 200 or OK, *charged* the candidate's
failed first attempts as the engine reads them: those that stable saved and those that were lost, and beside them what it *shed*, whoever
answered in its place; while what users were told that the candidate answered must be all that it is credited with. Dead: the control
plane is stopped for good before the fault begins. Ends with 1 where something is lost that the fault need not cost (`Fault.costs`), or the
charge is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import logging
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")

import django

django.setup()

from serving.ports import ArmCounters  # noqa: E402
from serving.traffic.core.request_limits import Limits  # noqa: E402
from serving.traffic.core.routes import Arm, ServerAddress  # noqa: E402
from tests.support.rigs.gateway_rig import MODEL, UNBOUNDED, Rig, grpc_infer, rig  # noqa: E402
from tests.support.servers.stub_process import StubProcess, stub_processes  # noqa: E402
from tests.support.servers.stub_server import Backend  # noqa: E402

#: Long enough that a stub on a busy machine is not late, short enough that ten thousand requests do not hang for long.
LIMITS = Limits(timeout_s=10.0, attempt_timeout_s=1.0)
OPENS_AFTER_S = 5.0
#: The bound of a server of the candidate where it is overloaded: a gateway allows eight times as much, so 8 over each protocol.
FEW = 1


@dataclass(frozen=True)
class Fault:
    """`mode`: what both stubs are told; `costs`: why users may lose requests to it, where they must."""

    words: str
    mode: str = ""
    in_processes: bool = False
    delay_s: float = 0.0
    opens_after_s: float = 0.0
    max_in_flight: int = UNBOUNDED
    retries_resets: bool = False  # what the model's traffic policy says of it
    costs: str = ""
    sheds: bool = False  # whether the candidate refuses, and does not fail


FAULTS = {
    "error": Fault("internal error: 500, INTERNAL", "error"),
    "unavailable": Fault("unavailable: 503, UNAVAILABLE", "unavailable"),
    "hang": Fault("hang: never answers", "hang"),
    "reset": Fault("reset: connection cut once the request is there", "cut", costs="sent, and its connection broke"),
    "kill": Fault(
        "process kill: SIGKILL in mid-traffic", in_processes=True, delay_s=0.01, costs="in flight at the kill"
    ),
    "reset_again": Fault("reset, with `retry_on_reset`", "cut", retries_resets=True),
    "kill_again": Fault("process kill, with `retry_on_reset`", in_processes=True, delay_s=0.01, retries_resets=True),
    "slow_start": Fault("slow start: listed, listens 5 s later", in_processes=True, opens_after_s=OPENS_AFTER_S),
    "slow": Fault("overload: it queues, within its bound", delay_s=0.04),
    "bound": Fault("overload: it queues, at its bound", delay_s=0.04, max_in_flight=FEW, sheds=True),
    "full": Fault("overload: its servers' own queues are full", "full", sheds=True),
}


@dataclass
class Cell:
    """What users saw of one fault."""

    outcome: Counter[str] = field(default_factory=Counter)
    well_by: Counter[str] = field(default_factory=Counter)  # the release that answered
    counted: ArmCounters = field(default_factory=ArmCounters)
    user_errors: int = 0
    seconds: float = 0.0

    @property
    def lost(self) -> int:
        return sum(n for what, n in self.outcome.items() if what)


class Users:
    """So many at once, each on a connection of its own, until all requests were asked."""

    def __init__(self, parts: Rig, protocol: str, clients: int, requests: int, on_quarters: Callable[[], None]) -> None:
        self._parts, self._requests, self._on_quarters = parts, requests, on_quarters
        self._left, self._lock, self.cell = itertools.count(), threading.Lock(), Cell()
        began = time.monotonic()
        user = self._http if protocol == "HTTP" else self._grpc
        with ThreadPoolExecutor(clients) as pool:
            for one in [pool.submit(user) for _ in range(clients)]:
                one.result()
        self.cell.seconds = time.monotonic() - began

    def _asked(self) -> Iterator[None]:
        while (number := next(self._left)) < self._requests:
            if number in (self._requests // 4, self._requests // 2):
                self._on_quarters()
            yield

    def _note(self, outcome: str, release: str | None) -> None:
        with self._lock:
            self.cell.outcome[outcome] += 1
            self.cell.well_by[release or ""] += not outcome

    def _http(self) -> None:
        line = http.client.HTTPConnection("127.0.0.1", self._parts.envoy.port, timeout=50)
        for _ in self._asked():
            try:
                line.request("POST", f"/v2/models/{MODEL}/infer", b"{}")
                answer = line.getresponse()
                answer.read()
                outcome = "" if answer.status == 200 else str(answer.status)
                self._note(outcome, answer.getheader("x-sluicegate-release"))
            except (OSError, http.client.HTTPException) as error:
                self._note(type(error).__name__, None)
                line.close()
        line.close()

    def _grpc(self) -> None:
        with self._parts.envoy.channel() as channel:
            for _ in self._asked():
                code, release, _ = grpc_infer(channel)
                self._note("" if code.name == "OK" else code.name, release)


@contextlib.contextmanager
def candidates(parts: Rig, fault: Fault) -> Iterator[tuple[list[Backend], list[StubProcess]]]:
    """Two servers of the candidate, as stubs or as processes of their own."""
    if fault.in_processes:
        with stub_processes(["r2-0", "r2-1"], delay_s=fault.delay_s, opens_after_s=fault.opens_after_s) as processes:
            yield [], processes
        return
    second = Backend(parts.loop, "r2-1").start()
    try:
        yield [parts.candidate, second], []
    finally:
        second.stop()


def measure(fault: Fault, protocol: str, *, is_dead: bool, requests: int, clients: int) -> Cell:
    """One cell of the table, on a gateway of its own."""
    with tempfile.TemporaryDirectory() as folder, rig(Path(folder)) as parts, candidates(parts, fault) as (stubs, made):
        twin = Backend(parts.loop, "r1-1").start()
        endpoints = tuple(sorted(one.endpoint for one in stubs or made))
        if fault.mode == "cut":  # its port for HTTP cuts whatever comes; over gRPC the stub could only say UNAVAILABLE
            endpoints = tuple(ServerAddress(one.host, one.http_port, one.http_port) for one in endpoints)
        stable = Arm("r1", Rig.STABLE, tuple(sorted((parts.stable.endpoint, twin.endpoint))), UNBOUNDED)
        candidate = Arm("r2", Rig.CANDIDATE, endpoints, fault.max_in_flight)
        again = fault.retries_resets
        parts.apply(5_000, stable=stable, candidate=candidate, limits=LIMITS, retries_resets=again)
        if is_dead:
            parts.loop.run(parts.ads.stop())
        for one in stubs:
            one.mode, one.delay_s = fault.mode or "ok", fault.delay_s
        alive = iter(made if not fault.opens_after_s else [])

        def kill_one() -> None:
            for one in itertools.islice(alive, 1):
                one.kill()

        cell = Users(parts, protocol, clients, requests, kill_one).cell
        counters = parts.counters()
        cell.counted = counters.by_release.get(Rig.CANDIDATE, ArmCounters())
        cell.user_errors = counters.user_errors
        twin.stop()
    return cell


def is_sound(fault: Fault, cell: Cell, requests: int) -> bool:
    """Nothing lost that the fault need not cost; what was lost or answered by stable in the candidate's place is charged to it."""
    one = cell.counted
    is_charged = one.failed == one.saved + cell.lost and one.decided - one.failed == cell.well_by["r2"]
    is_charged &= bool(one.shed) == fault.sheds and (not fault.sheds or one.routed == one.shed + one.decided)
    is_counted = sum(cell.outcome.values()) == requests and cell.user_errors == cell.lost
    return is_counted and is_charged and (not cell.lost or bool(fault.costs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--only", default=",".join(FAULTS))
    asked = parser.parse_args()
    print("| fault | protocol | control plane | lost | failed attempts charged | saved by stable | shed | seconds | |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    logging.disable(logging.WARNING)
    unsound = 0
    cells = itertools.product([FAULTS[one] for one in asked.only.split(",")], ("HTTP", "gRPC"), (False, True))
    for fault, protocol, is_dead in cells:
        cell = measure(fault, protocol, is_dead=is_dead, requests=asked.requests, clients=asked.clients)
        one, is_right = cell.counted, is_sound(fault, cell, asked.requests)
        unsound += not is_right
        why = ", ".join(f"{what}: {n}" for what, n in sorted(cell.outcome.items()) if what)
        print(
            f"| {fault.words} | {protocol} | {'dead' if is_dead else 'alive'} | {cell.lost} | {one.failed} | {one.saved} | {one.shed} "
            f"| {cell.seconds:.0f} | {why} {'' if is_right else f'WRONG {cell}'} |",
            flush=True,
        )
    return int(unsound > 0)


if __name__ == "__main__":
    sys.exit(main())
