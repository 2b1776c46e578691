"""What becomes of the judgement when a premise of it does not hold: scenarios walked through the engine's own decisions.

Run `python -m benchmarks.calibration.premises`. It writes docs/premises.json and the figures of docs/premises.md. `--runs N` walks
N of the 200 rollouts that a full run asks for (some scenarios walk fewer); the tables tell each scenario's own number. `--only PART`
tries the scenarios whose name has this part, and only prints. `--render` makes the page anew from the kept results. Seeded: the
same numpy brings the same numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibration.__main__ import line
from benchmarks.calibration.premises.measured import SEED, measured, walked
from benchmarks.calibration.premises.page import write_page
from benchmarks.calibration.premises.scenario import Scenario
from benchmarks.calibration.premises.scenarios import scenarios
from benchmarks.calibration.premises.walking import Ran

DOCS = Path(__file__).resolve().parents[3] / "docs"
KEPT, PAGE = DOCS / "premises.json", DOCS / "premises.md"
#: Rollouts that one job walks, and of how many a scenario's `runs` are told.
BATCH, RUNS, PROCESSES = 10, 200, 2


def main() -> None:
    """Reads the command line; see the module's words."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration.premises", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of {RUNS} rollouts walk so many")
    parser.add_argument("--only", default="", metavar="PART", help="only scenarios whose name has this part")
    parser.add_argument("--render", action="store_true", help="no simulation: the page from docs/premises.json")
    args = parser.parse_args()
    if args.render:
        write_page(json.loads(KEPT.read_text()), PAGE)
        return
    found = simulated([one for one in scenarios() if args.only in one.name], args.runs)
    if not args.only:
        KEPT.write_text(in_lines(found))
        write_page(found, PAGE)


def simulated(wanted: list[Scenario], runs: int) -> dict[str, Any]:
    """All results, in the order of `wanted`; a line of progress for each scenario."""
    began, found = time.monotonic(), {}
    parts: dict[str, dict[int, list[Ran]]] = defaultdict(dict)
    with ProcessPoolExecutor(PROCESSES) as pool:
        jobs = {
            pool.submit(walked, one, first, min(BATCH, share_of(one, runs) - first)): (one, first)
            for one in wanted
            for first in range(0, share_of(one, runs), BATCH)
        }
        for job in as_completed(jobs):
            one, first = jobs[job]
            parts[one.name][first] = job.result()
            walks = [walk for _, some in sorted(parts[one.name].items()) for walk in some]
            if len(walks) == share_of(one, runs):
                found[one.name] = measured(one, walks)
                at = f"[{len(found):>3}/{len(wanted)}] {time.monotonic() - began:5.0f} s"
                print(f"{at}  {told(found[one.name])}", flush=True)
    return {
        "command": f"python -m benchmarks.calibration.premises --runs {runs}",
        "seed": SEED,
        "numpy": np.__version__,
        "took_s": round(time.monotonic() - began),
        "scenarios": [found[one.name] for one in wanted],
    }


def share_of(scenario: Scenario, runs: int) -> int:
    """How many of the scenario's rollouts to walk when `runs` of `RUNS` are wanted."""
    return max(1, round(scenario.runs * runs / RUNS))


def told(result: dict[str, Any]) -> str:
    """One scenario in one line."""
    promoted, n = result["promoted"]["count"], result["runs"]
    held = ", ".join(f"{code} {count}" for code, count in result["held_by"].items() if code != "need_more")
    reasons = ", ".join(f"{code} {count}" for code, count in result["reasons"].items())
    bad = f" · bad {result['bad_requests']}" if "bad_requests" in result else ""
    return f"{line(result)} · n {n}, promoted {promoted}{bad} · {reasons or 'no rollback'} · held: {held or '–'}"


def in_lines(results: dict[str, Any]) -> str:
    """JSON with one line for each scenario, so that a change shows as one."""
    rows = ",\n".join(json.dumps(one, ensure_ascii=False) for one in results["scenarios"])
    head = json.dumps({name: one for name, one in results.items() if name != "scenarios"}, ensure_ascii=False)[:-1]
    return f'{head},\n"scenarios": [\n{rows}\n]}}\n'


if __name__ == "__main__":
    main()
