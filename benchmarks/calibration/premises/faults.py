"""Faults of the candidate: those that something hides, and those that are merely hard to see. Times are from their onset."""

from __future__ import annotations

from typing import Any

from benchmarks.calibration.cells import OBJECTIVES
from benchmarks.calibration.premises.scenario import Fault, Scenario
from benchmarks.calibration.traffic import Latency

NORMAL = Latency()
ROOMY = {"errors_max_frac": 0.05}
WRONG = {"preset": "standard", "guards": [{"indicator": "errors"}, {"indicator": "wrong"}]}


def hidden() -> list[Scenario]:
    """What retries, history, clumps or an unspent budget cover up."""
    late = Fault(0.045, 300, in_bake=True)
    found = [
        Scenario(
            "poison", ".5 % fail anywhere, the candidate 4.5 % more, 5 min into the bake", rate, horizon_s=3000,
            runs=20, base=(0.0,), poison=0.005, retried=True, faults=(late,),
        )
        for rate in (1.0, 10.0, 100.0)
    ]  # fmt: skip
    found += [
        Scenario(
            "poison", ".5 % fail anywhere, the candidate 1.5 % more from the start", rate, horizon_s=2700, runs=40,
            base=(0.0,), poison=0.005, retried=True, faults=(Fault(0.015),),
        )
        for rate in (1.0, 10.0, 100.0)
    ]  # fmt: skip
    found += [
        Scenario(
            "poison", f"{share:.1%} fail anywhere, the candidate 5 % more, {after} s into the bake", 10.0, horizon_s=1500,
            objectives=ROOMY, runs=60, base=(0.0,), poison=share, retried=True, faults=(Fault(0.05, after, in_bake=True),),
        )
        for share in (0.0, 0.015)
        for after in (2, 60)
    ]  # fmt: skip
    for errors in (20, 200):
        before = ((-50, errors), (-30, errors), (-10, errors))
        found += [
            Scenario(
                "history", f"3 bursts of {errors} before the start, the candidate fails {share:.0%}", 10.0,
                horizon_s=1500, runs=60, before=before, faults=(Fault(share - 0.005),),
            )
            for share in (0.05, 0.2)
        ]  # fmt: skip
    found += [
        Scenario(
            "clumps late", "4.5 % more in clumps of 30, 15 min into the bake", rate, horizon_s=4200, runs=runs,
            faults=(Fault(0.045, 900, in_bake=True, clump=30),),
        )
        for rate, runs in ((10.0, 40), (100.0, 20))
    ]  # fmt: skip
    found.append(
        Scenario(
            "clumps late", "the candidate had been better: none fail before", 100.0, horizon_s=4200, runs=20,
            candidate_base=0.0, faults=(Fault(0.045, 900, in_bake=True, clump=30),),
        )
    )  # fmt: skip
    return found


def plain() -> list[Scenario]:
    """Nothing covers them up: they are small, late, rare, or elsewhere than where one looks."""
    return [*_flickering(), *_small(), *_last_minute(), *_elsewhere()]


def _fault(kind: str, rate: float, fault: Fault, horizon_s: int, runs: int, **more: Any) -> Scenario:
    return Scenario("fault", kind, rate, horizon_s=horizon_s, runs=runs, faults=(fault,), **more)


def _flickering() -> list[Scenario]:
    """For a second now and then every request fails: the server may be restarting."""
    found = [
        _fault(f"all fail 1 s of every {every}", rate, Fault(1.0, 60, every_s=every, on_s=1), 2400, 20)
        for every in (30, 60)
        for rate in (1.0, 10.0, 100.0)
    ]
    seen = Fault(1.0, 60, every_s=30, on_s=1, is_seen=True)
    return [*found, _fault("the same of every 30, and its server is seen to be gone", 10.0, seen, 600, 20)]


def _small() -> list[Scenario]:
    found = [_fault("one tenant's 1 % of the requests fail", rate, Fault(0.01, 60), 2700, 30) for rate in (10.0, 100.0)]
    found += [_fault(f"{share:.1%} from the start", 10.0, Fault(share - 0.005), 3000, 30) for share in (0.008, 0.01)]
    found.append(_fault("grows by 1 % a minute from 20 min on", 10.0, Fault(0.5, 1200, grows=0.01), 2700, 20))
    clumps = Fault(0.045, 60, clump=30)
    found.append(_fault("4.5 % more in clumps of 30, both arms clump", 10.0, clumps, 3000, 20, clump=30))
    shared = (Fault(0.045, 60, is_shared=True), Fault(0.05, 60))
    found += [
        Scenario("fault", "10 %, while both fail 5 %", rate, horizon_s=2400, runs=20, faults=shared)
        for rate in (1.0, 10.0)
    ]
    return found


def _last_minute() -> list[Scenario]:
    return [
        _fault(f"{share:.0%} in the last minute of the bake", rate, Fault(share - 0.005, 1740, in_bake=True), 5400, 20)
        for share in (0.02, 0.05, 0.2)
        for rate in (1.0, 10.0, 100.0)
    ]


def _elsewhere() -> list[Scenario]:
    """Latency and answers."""
    slower = {
        "a better median and a worse tail": Latency(70, tail_frac=0.03),
        "only the slowest in 1000 are slower": Latency(tail_frac=0.001),
    }
    found = [
        Scenario("fault", kind, 10.0, {"preset": "standard"}, OBJECTIVES, 2700, runs=20, latency=NORMAL, slower=one)
        for kind, one in slower.items()
    ]
    found += [
        Scenario(
            "fault", f"{share:.0%} of the answers are wrong, .1 % of stable's; {per_s:g} compared a second", 10.0, WRONG,
            horizon_s=2700, runs=20, compared_per_s=per_s, wrong=(share, 0.001),
        )
        for share in (0.01, 0.02)
        for per_s in (0.2, 2.0, 20.0)
    ]  # fmt: skip
    return found
