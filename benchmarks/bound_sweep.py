"""What a bound on the requests in flight does for a server that is asked for more than it can: real Triton, real Envoy.

Run `python -m benchmarks.bound_sweep [--seconds 2.5] [--bounds 1,2,4,8,16,32]`; just under four minutes. Two models: one that takes 20 ms
for each request, and one that gets slower the larger its batches are, so that a queue, once it is there, stays (metastable). First a
closed loop shows how many requests at once the server still gains from. Then, for each bound, users come at random at 0.5, 1, 2 and
3 times the capacity, and at 0.7 times right after that. Printed: good answers (200 within 250 ms) in percent of what was asked for, or
of the capacity where more was; the share that was shed at half load; how fast shedding is at 2 times; and when, after the burst,
nine in ten answers are good again. Latencies are upper bounds: the load generator runs on the same cores.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")

import django
import numpy as np

django.setup()

from serving.traffic.core.request_limits import Limits  # noqa: E402
from tests.support.rigs.gateway_rig import Rig, rig  # noqa: E402
from tests.support.rigs.overload_rig import FIFO, METASTABLE, Call, Model, closed_loop, open_loop, stable, triton  # noqa: E402

GOOD_S = 0.25
#: No bound: what the gateway had before there was one.
NONE = 4096
LOADS = (0.5, 1.0, 2.0, 3.0)
AFTER = 0.7


def good(calls: Sequence[Call]) -> list[Call]:
    return [one for one in calls if one.status == 200 and one.took_s <= GOOD_S]


def shed(calls: Sequence[Call]) -> list[Call]:
    return [one for one in calls if one.status in (429, 503)]


def back_s(calls: Sequence[Call], began_s: float) -> str:
    """Seconds from the end of the burst until half a second passed in which nine in ten answers were good."""
    end_s = max((one.at_s for one in calls), default=began_s)
    for at_s in np.arange(began_s, end_s - 0.5, 0.1):
        window = [one for one in calls if at_s <= one.at_s < at_s + 0.5]
        if window and len(good(window)) >= 0.9 * len(window):
            return f"{at_s - began_s:.1f}"
    return "not"


def row(parts: Rig, bound: int, capacity: float, seconds: float) -> str:
    phases = [(load * capacity, seconds) for load in LOADS] + [(AFTER * capacity, 3.0)]
    found = open_loop(parts.envoy.port, phases)
    shares = []
    for load, calls in zip(LOADS, found, strict=False):
        best = min(len(calls), capacity * seconds) if load >= 1 else len(calls)
        shares.append(f"{100 * len(good(calls)) / max(best, 1):.0f}")
    quick = [one.took_s for one in shed(found[2])]
    p99 = f"{1000 * float(np.quantile(quick, 0.99)):.0f} ms" if quick else "–"
    half = f"{100 * len(shed(found[0])) / max(len(found[0]), 1):.0f} %"
    after = found[-1]
    well = f"{100 * len(good(after)) / max(len(after), 1):.0f} %"
    name = "none" if bound == NONE else str(bound)
    return f"| {name} | {' / '.join(shares)} | {half} | {p99} | {well}, {back_s(after, seconds * len(LOADS))} s |"


def measure(folder: Path, model: Model, bounds: Sequence[int], seconds: float) -> None:
    limits = Limits(timeout_s=10.0, attempt_timeout_s=10.0)
    with triton(folder / "triton", model) as at, rig(folder) as parts:
        parts.apply(None, stable=stable(at, NONE), limits=limits)
        closed_loop(parts.envoy.port, 1, 0.5)
        sweep = {}
        for clients in bounds:
            calls = [one for one in closed_loop(parts.envoy.port, clients, 1.5) if one.status == 200]
            sweep[clients] = len(calls) / max(one.at_s + one.took_s for one in calls)
        capacity = max(sweep.values())
        rates = ", ".join(f"{clients} → {rate:.0f}/s" for clients, rate in sweep.items())
        print(f"\n{model.name}; at once → answered: {rates}\n")
        print(
            "| bound | good at 0.5× / 1× / 2× / 3×, % | shed at 0.5× | shed p99 at 2× | good after the burst, back in |"
        )
        print("|---|---|---|---|---|", flush=True)
        for bound in (*bounds, NONE):
            parts.apply(None, stable=stable(at, bound), limits=limits)
            print(row(parts, bound, capacity, seconds), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.5, help="of each load")
    parser.add_argument("--bounds", default="1,2,4,8,16,32")
    asked = parser.parse_args()
    for model in (FIFO, METASTABLE):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "rig").mkdir()
            measure(Path(folder) / "rig", model, [int(one) for one in asked.bounds.split(",")], asked.seconds)


if __name__ == "__main__":
    main()
