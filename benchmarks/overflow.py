"""A candidate that refuses its half of the traffic, and a stable that cannot bear it all: what handing on costs stable. Real Triton, Envoy.

Run `python -m benchmarks.overflow [--seconds 10]`, two minutes. Stable is a real Triton that takes 20 ms for each request, one at a time;
the candidate a stub that has half of the traffic. Users come at random, three times as many as stable can serve: first to stable alone,
then beside a candidate whose servers' queues are full, and beside one that is at its bound at the gateway. What the candidate refuses is
asked of stable once (`serving.traffic.control_plane.overflow`), so stable is asked for up to three times its capacity in each row.

Printed: stable's good answers (200 or OK within 250 ms) in percent of its capacity, what its users were shed and how fast, as they saw it,
how often stable's server was asked for each answer it gave, and what the candidate is charged with. Ends with 1 where stable gives
less than 80 %, somebody waited in vain or was not told when to come again, 99 in 100 were not shed within 50 ms, or the charge is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")

import django
import numpy as np

django.setup()

from benchmarks.overload import GOOD_S, LEAST_GOODPUT, SHED_WITHIN_S  # noqa: E402
from serving.ports import ArmCounters  # noqa: E402
from serving.traffic.core.request_limits import Limits  # noqa: E402
from serving.traffic.core.routes import IN_FLIGHT_PER_INSTANCE, Arm, ServerAddress  # noqa: E402
from tests.support.rigs.gateway_rig import UNBOUNDED, Rig, rig  # noqa: E402
from tests.support.rigs.overload_rig import FIFO, Call, Channel, Lines, Users, closed_loop, open_loop, triton  # noqa: E402

TIMES: Final = 3.0
USERS: Final[dict[str, Callable[[int], Users]]] = {"HTTP": Lines, "gRPC": Channel}
#: Nobody is late at the candidate, which has room for eight over each protocol where it has one for a gateway.
LIMITS: Final = Limits(timeout_s=10.0, attempt_timeout_s=10.0)
ALONE, FULL, BOUND = "stable alone", "beside a candidate whose queues are full", "beside a candidate at its bound"
#: How long the candidate takes where it is at its bound: longer than a good answer, so none of its own passes for one of stable's.
SLOW_S: Final = 2 * GOOD_S


@dataclass(frozen=True)
class Row:
    """`candidate`: what was drawn for it in this row alone."""

    calls: Sequence[Call]
    capacity: float
    seconds: float
    candidate: ArmCounters

    @property
    def good(self) -> int:
        return sum(one.status == 200 and one.took_s <= GOOD_S for one in self.calls)

    @property
    def goodput(self) -> float:
        return self.good / (self.capacity * self.seconds)

    @property
    def shed(self) -> list[Call]:
        return [one for one in self.calls if one.status == 429]

    @property
    def shed_p99_s(self) -> float:
        return float(np.quantile([one.took_s for one in self.shed], 0.99)) if self.shed else 0.0

    @property
    def lost(self) -> int:
        return sum(one.status not in (200, 429) for one in self.calls)

    def misses(self, name: str) -> list[str]:
        has_candidate = name != ALONE
        found = {
            f"goodput {100 * self.goodput:.0f} % of the capacity": self.goodput < LEAST_GOODPUT,
            f"{self.lost} requests were neither answered nor shed": bool(self.lost),
            "not everybody who was shed was told when to come again": not all(one.has_term for one in self.shed),
            f"99 in 100 were shed within {1000 * self.shed_p99_s:.0f} ms": self.shed_p99_s > SHED_WITHIN_S,
            "nothing was shed": not self.shed,
            "the candidate is charged with failures": bool(self.candidate.failed),
            "the candidate is not charged with what it refused": has_candidate and not self.candidate.shed,
        }
        return [f"{name}: {words}" for words, is_missed in found.items() if is_missed]


def routed(parts: Rig, at: ServerAddress, name: str) -> None:
    """All routes of the row `name`, and the candidate behaves accordingly."""
    parts.candidate.mode = "full" if name == FULL else "ok"
    parts.candidate.delay_s = SLOW_S if name == BOUND else 0.0
    stable = Arm("r1", Rig.STABLE, (at,), IN_FLIGHT_PER_INSTANCE)
    candidate = Arm("r2", Rig.CANDIDATE, (parts.candidate.endpoint,), 1 if name == BOUND else UNBOUNDED)
    if name == ALONE:
        parts.apply(None, stable=stable, limits=LIMITS)
    else:
        parts.apply(5_000, stable=stable, candidate=candidate, limits=LIMITS)


def of_candidate(parts: Rig) -> ArmCounters:
    return parts.counters().by_release.get(Rig.CANDIDATE, ArmCounters())


def measure(parts: Rig, at: ServerAddress, seconds: float) -> list[str]:
    routed(parts, at, ALONE)
    closed_loop(parts.envoy.port, 1, 0.5)
    calls = [one for one in closed_loop(parts.envoy.port, 2, 3.0) if one.status == 200]
    capacity = len(calls) / max(one.at_s + one.took_s for one in calls)
    print(f"stable answers {capacity:.1f}/s; asked for {TIMES * capacity:.0f}/s\n")
    print(
        "| | | good, % of stable's capacity | asked | shed | p99 of shedding | else | of the candidate: drawn, shed, failed |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    missed = []
    for protocol in USERS:
        for name in (ALONE, FULL, BOUND):
            routed(parts, at, name)
            before = of_candidate(parts)
            (found,) = open_loop(parts.envoy.port, [(TIMES * capacity, seconds)], users=USERS[protocol])
            after = of_candidate(parts)
            counted = ArmCounters(
                routed=after.routed - before.routed,
                failed=after.failed - before.failed,
                shed=after.shed - before.shed,
            )
            row = Row(found, capacity, seconds, counted)
            print(
                f"| {protocol} | {name} | {100 * row.goodput:.0f} | {len(found)} | {len(row.shed)} | {1000 * row.shed_p99_s:.0f} ms "
                f"| {row.lost} lost | {counted.routed}, {counted.shed}, {counted.failed} |",
                flush=True,
            )
            missed += [f"{protocol}, {one}" for one in row.misses(name)]
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each row")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        triton(Path(folder) / "triton", FIFO) as at,
        rig(Path(folder)) as parts,
    ):
        missed = measure(parts, at, asked.seconds)
    print("\n" + ("\n".join(missed) or "Stable bears it."))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
