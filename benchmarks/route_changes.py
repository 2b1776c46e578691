"""Changes under load: how many requests are lost while weights move and replicas come and go, and how soon a change is in force.

Run `python -m benchmarks.route_changes [--weights 200] [--replicas 50] [--clients 4]`; about a minute. A real Envoy before stub servers
that answer at once, three of the stable release and two of the candidate, asked over HTTP and gRPC, each client again as soon as it has its
answer. A replica that goes is taken out of the gateway and stopped a second later, as an agent drains it. Ends with 1 where a request was
lost.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")

import django
import numpy as np

django.setup()

from serving.traffic.core.routes import Arm  # noqa: E402
from tests.support.rigs.gateway_rig import UNBOUNDED, Rig, Traffic, rig  # noqa: E402
from tests.support.servers.stub_server import Backend  # noqa: E402

SEED = 20_261_123
DRAIN_S = 1.0


class _Fleet:
    """Replicas of one release, which come and go."""

    def __init__(self, parts: Rig, name: str, digest: str, replicas: int) -> None:
        self._parts, self._name, self._digest = parts, name, digest
        self._leaving: list[tuple[float, Backend]] = []
        self.replicas = [self._new() for _ in range(replicas)]

    def _new(self) -> Backend:
        return Backend(self._parts.loop, self._name).start()

    @property
    def arm(self) -> Arm:
        return Arm(self._name, self._digest, tuple(sorted(one.endpoint for one in self.replicas)), UNBOUNDED)

    def come_or_go(self, draw: random.Random) -> None:
        if len(self.replicas) == 1 or (len(self.replicas) < 5 and draw.random() < 0.5):
            self.replicas.append(self._new())
        else:
            self._leaving.append((time.monotonic() + DRAIN_S, self.replicas.pop(draw.randrange(len(self.replicas)))))

    def stop_drained(self, *, every: bool = False) -> None:
        due = [one for one in self._leaving if every or one[0] <= time.monotonic()]
        self._leaving = [one for one in self._leaving if one not in due]
        for _, backend in due:
            backend.stop()

    def close(self) -> None:
        self.stop_drained(every=True)
        for one in self.replicas:
            one.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=int, default=200, help="changes of the weight")
    parser.add_argument("--replicas", type=int, default=50, help="replicas that come or go")
    parser.add_argument("--clients", type=int, default=4)
    asked = parser.parse_args()
    draw = random.Random(SEED)
    changes = ["weight"] * asked.weights + ["replica"] * asked.replicas
    draw.shuffle(changes)
    with tempfile.TemporaryDirectory() as folder, rig(Path(folder)) as parts:
        fleets = _Fleet(parts, "r1", Rig.STABLE, 3), _Fleet(parts, "r2", Rig.CANDIDATE, 2)
        bp, took_ms = 0, list[float]()
        parts.apply(bp, stable=fleets[0].arm, candidate=fleets[1].arm)
        traffic = Traffic(parts.envoy, clients=asked.clients, pause_s=0.0)
        for change in changes:
            if change == "weight":
                bp = draw.choice([0, 100, 1000, 2500, 5000, 10_000])
            else:
                draw.choice(fleets).come_or_go(draw)
            took_ms.append(1000 * parts.apply(bp, stable=fleets[0].arm, candidate=fleets[1].arm))
            traffic.go_on(20)
            for fleet in fleets:
                fleet.stop_drained()
        outcome = traffic.stop()
        for fleet in fleets:
            fleet.close()
    lost = sum(outcome.values()) - outcome[""]
    p50, p99 = np.quantile(took_ms, [0.5, 0.99])
    print(
        f"{asked.weights} changes of the weight, {asked.replicas} of replicas: {sum(outcome.values())} requests, {lost} lost"
    )
    print(f"in force after {p50:.0f} ms (median), {p99:.0f} ms (p99)")
    if lost:
        print({what: n for what, n in outcome.items() if what})
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
