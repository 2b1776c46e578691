"""How often the resources gate is wrong about leaks: its own judgement on simulated memory, with and without a leak beneath.

Run `python -m benchmarks.leaks [--runs 1000]`; a minute on one core. Seeded. Each row is a kind of memory and a length of run; each
cell says failed / passed of all runs in percent, the rest being undecided, for a leak of so many bytes a request at the policy's
limit of 4096 and the confidence of one of two looks. At 0 and 2048 a failure is an error, at 8192 and 10486 (1 MiB in a hundred
requests) a pass is one; at 4096, the limit itself, both are.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from validators.core.growth import growth_of
from validators.core.policy import parse_policy
from validators.core.resources import grows
from validators.core.verdict import Verdict

SEED = 11
MIB = 2**20
LEAKS = (0, 2048, 4096, 8192, 10486)
#: (readings, requests): the load gate's run at 8/s, and at 20/s, what the policy asks for by itself, and a soak of five minutes.
LENGTHS = ((60, 200), (120, 600), (400, 2000), (1200, 6000))
Floats = npt.NDArray[np.float64]
#: (requests at each reading, bytes that leak for each, dice) → bytes that are held.
Memory = Callable[[Floats, float, np.random.Generator], Floats]


def steady(requests: Floats, leak: float, dice: np.random.Generator) -> Floats:
    return leak * requests + dice.normal(0, MIB / 16, len(requests))


def warming(requests: Floats, leak: float, dice: np.random.Generator) -> Floats:
    """8 MiB more until it is warm, most of them within 100 requests."""
    return 8 * MIB * (1 - np.exp(-requests / 100)) + steady(requests, leak, dice)


def warming_long(requests: Floats, leak: float, dice: np.random.Generator) -> Floats:
    """The same within a third of the run: the premise that it is over after a quarter is broken."""
    return 8 * MIB * (1 - np.exp(-3 * requests / requests[-1])) + steady(requests, leak, dice)


def stepping(requests: Floats, leak: float, dice: np.random.Generator) -> Floats:
    """Three steps of an allocator, of up to 8 MiB."""
    found = steady(requests, leak, dice)
    for at in dice.uniform(0, requests[-1], 3):
        found[requests > at] += dice.uniform(0.2, 8) * MIB
    return found


def collecting(requests: Floats, leak: float, dice: np.random.Generator) -> Floats:
    """A collector that runs every 30 to 300 requests, each of which leaves 20 KiB until then."""
    every = dice.uniform(30, 300)
    return steady(requests, leak, dice) + (requests + dice.uniform(0, every)) % every * 20_480


def remembering(requests: Floats, leak: float, dice: np.random.Generator) -> Floats:
    """Noise that forgets a tenth of itself from one reading to the next: readings are not independent."""
    found, noise = np.zeros(len(requests)), dice.normal(0, MIB / 8, len(requests))
    for at in range(1, len(requests)):
        found[at] = 0.9 * found[at - 1] + noise[at]
    return found + leak * requests


def wandering(requests: Floats, leak: float, dice: np.random.Generator) -> Floats:
    """A random walk, which forgets nothing: fragmentation at its worst."""
    return leak * requests + np.cumsum(dice.normal(0, MIB / 8, len(requests)))


def in_pieces(requests: Floats, leak: float, dice: np.random.Generator) -> Floats:
    """What leaks is asked of the system 1 MiB at a time."""
    return np.floor((leak * requests + dice.uniform(0, MIB)) / MIB) * MIB + dice.normal(0, MIB / 64, len(requests))


def hidden(requests: Floats, leak: float, dice: np.random.Generator) -> Floats:
    """The first 5 MiB that leak fit into what the allocator had free before, as in Triton's python backend."""
    return np.maximum(0, leak * requests - 5 * MIB) + dice.normal(0, MIB / 64, len(requests))


KINDS: dict[str, Memory] = {
    "steady, noise of 64 KiB": steady,
    "warms up within 100 requests": warming,
    "warms up within a third of the run": warming_long,
    "three steps of up to 8 MiB": stepping,
    "collected every 30 to 300 requests": collecting,
    "noise that is remembered (.9)": remembering,
    "a random walk": wandering,
    "leaks in pieces of 1 MiB": in_pieces,
    "5 MiB were free before": hidden,
}


def shares(memory: Memory, leak: float, *, readings: int, requests: int, runs: int) -> tuple[float, float]:
    """(failed, passed) of all runs."""
    policy = parse_policy({"gates": ["resources"], "resources": {"min_requests": 0}}).of("resources")
    dice = np.random.default_rng(SEED)
    at = np.linspace(0, requests, readings)
    found = []
    for _ in range(runs):
        points = list(zip(at.tolist(), memory(at, leak, dice).tolist(), strict=True))
        found.append(grows(growth_of(points, confidence=0.975), readings, requests, policy).verdict)
    return found.count(Verdict.FAILED) / runs, found.count(Verdict.PASSED) / runs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leaks", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    print(f"| memory | requests | {' | '.join(str(leak) for leak in LEAKS)} |")
    print(f"|---|---|{'---|' * len(LEAKS)}")
    for name, memory in KINDS.items():
        for readings, requests in LENGTHS:
            cells = [shares(memory, leak, readings=readings, requests=requests, runs=runs) for leak in LEAKS]
            print(f"| {name} | {requests} | {' | '.join(f'{100 * f:.1f} / {100 * p:.1f}' for f, p in cells)} |")


if __name__ == "__main__":
    main()
