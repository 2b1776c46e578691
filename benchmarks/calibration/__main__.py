"""The published calibration: how often healthy releases are rolled back, and how soon bad ones, beside rules that people use instead.

Run `python -m benchmarks.calibration`. A full run takes about a quarter of an hour on two cores and writes docs/calibration.json,
the figures of docs/calibration.md and its plots. `--quick`, `--runs N` and `--cells PART` try a part of it and only print.
`--render` makes page and plots anew from the kept results. Seeded: the same numpy brings the same numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibration.cells import cells
from benchmarks.calibration.curves import curves
from benchmarks.calibration.page import percent, write_page
from benchmarks.calibration.plots import write_plots
from benchmarks.calibration.simulate import OURS, SEED, Cell, measured

DOCS = Path(__file__).resolve().parents[2] / "docs"
RUNS, QUICK_RUNS, PROCESSES = 1000, 100, 2


def main() -> None:
    """Reads the command line; see the module's words."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__)
    parser.add_argument("--runs", type=int, default=None, help=f"rollouts for each cell ({RUNS})")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNS} rollouts for each cell, printed only")
    parser.add_argument("--cells", default="", metavar="PART", help="only cells whose name has this part, printed only")
    parser.add_argument("--plots", type=Path, default=DOCS / "images", metavar="DIR", help="where the plots go")
    parser.add_argument(
        "--render", action="store_true", help="no simulation: page and plots from docs/calibration.json"
    )
    args = parser.parse_args()
    kept = DOCS / "calibration.json"
    if args.render:
        publish(json.loads(kept.read_text()), args.plots)
        return
    runs = args.runs or (QUICK_RUNS if args.quick else RUNS)
    results = simulated([cell for cell in cells() if args.cells in cell.name], runs)
    if args.quick or args.cells or runs < RUNS:
        return
    kept.write_text(in_lines(results))
    publish(results, args.plots)


def simulated(wanted: list[Cell], runs: int) -> dict[str, Any]:
    """All results, in the order of `wanted`; a line of progress for each cell."""
    began, found = time.monotonic(), {}
    with ProcessPoolExecutor(PROCESSES) as pool:
        jobs = {pool.submit(measured, cell, runs): cell for cell in wanted}
        for job in as_completed(jobs):
            cell = jobs[job]
            found[cell.name] = job.result()
            print(
                f"[{len(found):>3}/{len(wanted)}] {time.monotonic() - began:5.0f} s  {line(found[cell.name])}",
                flush=True,
            )
    return {
        "command": "python -m benchmarks.calibration",
        "runs": runs,
        "seed": SEED,
        "numpy": np.__version__,
        "took_s": round(time.monotonic() - began),
        "cells": [found[cell.name] for cell in wanted],
        "curves": curves(),
    }


def line(result: dict[str, Any]) -> str:
    """One cell in one line: ours first, then what the others do."""
    name = f"{result['group']}: {result['kind']}, {result['rate_per_s']:g}/s"

    def said(rule: dict[str, Any]) -> str:
        if "delay_s" not in rule:
            return f"{percent(rule['false']['count'] / rule['false']['n'])} rolled back"
        seconds = " / ".join("never" if one is None else f"{one:.0f}" for one in rule["delay_s"])
        return f"{seconds} s, {percent(rule['missed']['count'] / max(1, rule['missed']['n']))} missed"

    others = {
        rule: said(numbers).removesuffix(" rolled back") for rule, numbers in result["rules"].items() if rule != OURS
    }
    return f"{name:58} {said(result['rules'][OURS]):24} | {' · '.join(f'{k} {v}' for k, v in others.items())}"


def in_lines(results: dict[str, Any]) -> str:
    """JSON with one line for each cell, so that a change shows as one."""
    cells_said = ",\n".join(json.dumps(cell, ensure_ascii=False) for cell in results["cells"])
    rest = {name: value for name, value in results.items() if name not in {"cells", "curves"}}
    head = json.dumps(rest, ensure_ascii=False)[:-1]
    return f'{head},\n"cells": [\n{cells_said}\n],\n"curves": {json.dumps(results["curves"], ensure_ascii=False)}}}\n'


def publish(results: dict[str, Any], plots: Path) -> None:
    """Writes the page's figures and the plots."""
    write_page(results, DOCS / "calibration.md")
    for path in write_plots(results, plots):
        print(f"wrote {path.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
