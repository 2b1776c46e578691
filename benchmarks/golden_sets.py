"""How often the golden gate fails a release that is as good as stable, and how often it fails one that lost what it should catch.

Run `python -m benchmarks.golden_sets [--runs N]` (500 runs: about ten minutes). Seeded. Every run is judged by the gate's own
judgement under a policy of the default limits. Rounding is 1e-3 of each value, and a row that is lost is off by a tenth; of texts it is
another text. Last, `rule: certified`, on labels that flip both ways, at and around the limit of two points.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from validators.core.certify import caught
from validators.core.golden import Replay, judge_golden
from validators.core.golden_set import GoldenItem
from validators.core.policy import parse_policy
from validators.core.ruler import LABELS, ruler_of

SEED, ROUNDING = 20261123, 1e-3
Numbers = npt.NDArray[np.float64]
Run = Callable[[np.random.Generator], Replay]


def section(**golden: Any) -> dict[str, Any]:
    return parse_policy({"golden": {"set": "sha256:" + "0" * 64, **golden}}).of("golden")


LABELLED, NUMBERS = section(min_agreement=None), section(compare="largest_relative_error")
TEXTS, CERTIFIED = section(compare="normalised_text"), section(min_agreement=None, rule="certified")


def items_of(n: int, slices: int) -> list[GoldenItem]:
    return [GoldenItem(str(at), {}, 1, f"s{at % slices}") for at in range(n)]


def labels_run(n: int, slices: int, *, flips: float, lost: float = 0.0, in_slice: bool = False) -> Run:
    """Stable is right on nine rows of ten; `flips` of all rows are lost and as many won, and on top `lost` of the first slice or of all."""
    items = items_of(n, slices)
    first = np.array([item.slice == "s0" for item in items])

    def run(random: np.random.Generator) -> Replay:
        stable = (random.random(n) < 0.9).astype(int)
        candidate = np.where(random.random(n) < flips / np.where(stable == 1, 0.9, 0.1), 1 - stable, stable)
        hit = (random.random(n) < lost) & (first if in_slice else True)
        candidate = np.where(hit, 0, candidate)
        return Replay(items, [1] * n, candidate.tolist(), stable.tolist(), "r1", ruler=LABELS)

    return run


def numbers_run(
    n: int, slices: int, *, lost: float = 0.0, both_lose: float = 0.0, in_slice: bool = False, has_stable: bool = True,
    spread: float = 0.0,
) -> Run:  # fmt: skip
    """Answers that are those expected but for rounding; `lost` rows are off by a tenth, and of either release `both_lose` others.

    `spread` is the scatter of each answer of either release, by which stable is calibrated as the gate does it: 64 rows asked again.
    """
    items, true = items_of(n, slices), [1.0] * n
    first = np.array([item.slice == "s0" for item in items])

    def run(random: np.random.Generator) -> Replay:
        def answers() -> Numbers:
            own = ROUNDING * random.uniform(-1, 1, n) + spread * random.normal(0, 1, n)
            return 1 + own + 0.1 * (random.random(n) < both_lose)

        stable, candidate = answers(), answers()
        candidate += 0.1 * ((random.random(n) < lost) & (first if in_slice else True))
        noise = float(np.abs(stable - answers())[:64].max()) if spread else 0.0
        ruler = replace(ruler_of(NUMBERS, (), {"y": "FP32"}, noise=noise), distance=off)
        before, name = (stable.tolist(), "r1") if has_stable else (None, "")
        return Replay(items, true, candidate.tolist(), before, name, ruler=ruler)

    return run


def texts_run(
    n: int, slices: int, *, lost: float = 0.0, both_lose: float = 0.0, in_slice: bool = False, has_stable: bool = True
) -> Run:
    """Words that are those expected but for case; `lost` rows are other words, and of either release `both_lose` others."""
    items, true = items_of(n, slices), [{"answer": f"answer {at}"} for at in range(n)]
    first = np.array([item.slice == "s0" for item in items])
    ruler = ruler_of(TEXTS, true, {"answer": "BYTES"})

    def run(random: np.random.Generator) -> Replay:
        def answers(share: float) -> list[dict[str, str]]:
            wrong = (random.random(n) < both_lose) | ((random.random(n) < share) & (first if in_slice else True))
            return [{"answer": "something else" if one else f"Answer {at}"} for at, one in enumerate(wrong)]

        stable, candidate = answers(0.0), answers(lost)
        return Replay(items, true, candidate, stable if has_stable else None, "r1" if has_stable else "", ruler=ruler)

    return run


def off(expected: float, got: float) -> float:
    return abs(got - expected) / expected


def verdicts(run: Run, golden: Mapping[str, Any], runs: int, key: Sequence[int]) -> Counter[str]:
    """How often each verdict came. `key` seeds the cell apart from the others."""
    random = np.random.default_rng([SEED, *key])
    return Counter(judge_golden(run(random), golden).verdict.value for _ in range(runs))


def main() -> None:
    """Prints the three tables of docs/gates.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden_sets", description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    runs = parser.parse_args().runs
    print("| a release that is as good as stable | rows | slices | failed | undecided |\n|---|---|---|---|---|")
    for at, (n, slices) in enumerate([(200, 1), (400, 4), (2000, 20)]):
        cells: list[tuple[str, Run, Mapping[str, Any]]] = [
            ("labels, 2 % flip each way", labels_run(n, slices, flips=0.02), LABELLED),
            ("tensors, rounding of 1e-3", numbers_run(n, slices), NUMBERS),
            ("tensors, each release misses 1 % of its own", numbers_run(n, slices, both_lose=0.01), NUMBERS),
            ("tensors, a scatter of 1 %, seen on stable", numbers_run(n, slices, spread=0.01), NUMBERS),
            ("texts, each release misses 1 % of its own", texts_run(n, slices, both_lose=0.01), TEXTS),
        ]
        for kind, (name, run, golden) in enumerate(cells):
            print(told(name, n, slices, verdicts(run, golden, runs, (at, kind)), runs), flush=True)
    print("\n| a release that lost rows | rows | slices | lost | failed | undecided |\n|---|---|---|---|---|---|")
    for at, (n, slices) in enumerate([(200, 1), (400, 4), (2000, 20)]):
        for kind, has_stable in enumerate([True, False]):
            for in_slice in (False, True) if slices > 1 else (False,):
                share = share_of(n, slices, NUMBERS, in_slice, has_stable)
                run = numbers_run(n, slices, lost=share, in_slice=in_slice, has_stable=has_stable)
                where, beside = "one slice" if in_slice else "all rows", "against" if has_stable else "without"
                found = verdicts(run, NUMBERS, runs, (9, at, kind, in_slice))
                print(told(f"tensors, {where}, {beside} stable", n, slices, found, runs, f" {share:.1%} |"), flush=True)
        for in_slice in (False, True) if slices > 1 else (False,):
            where, right = (
                "one slice" if in_slice else "all rows",
                0.9,
            )  # of which only those can be lost that were right
            share = share_of(n, slices, TEXTS, in_slice, True)
            run = texts_run(n, slices, lost=share, in_slice=in_slice)
            found = verdicts(run, TEXTS, runs, (10, at, in_slice))
            print(told(f"texts, {where}, against stable", n, slices, found, runs, f" {share:.1%} |"), flush=True)
            share = share_of(n, slices, LABELLED, in_slice, True)
            run = labels_run(n, slices, flips=0, lost=share / right, in_slice=in_slice)
            found = verdicts(run, LABELLED, runs, (11, at, in_slice))
            print(told(f"labels, {where}, against stable", n, slices, found, runs, f" {share:.1%} |"), flush=True)
    certified(runs)


def certified(runs: int) -> None:
    """Where the rule asks for proof: how often a drop is let through, and how often nothing is proven."""
    drops = (0.0, 0.01, 0.02, 0.03, 0.05)
    print(f"\n| `rule: certified`, rows; true drop | {' | '.join(f'{drop:.0%}' for drop in drops)} |\n|{'---|' * 6}")
    for at, n in enumerate([200, 500, 2000, 5000]):
        cells = []
        for kind, drop in enumerate(drops):
            found = verdicts(labels_run(n, 1, flips=0.01, lost=drop / 0.9), CERTIFIED, runs, (12, at, kind))
            cells.append(f"{found['passed'] / runs:.1%} / {found['failed'] / runs:.1%}")
        print(f"| {n} | {' | '.join(cells)} |", flush=True)


def share_of(n: int, slices: int, golden: Mapping[str, Any], in_slice: bool, has_stable: bool) -> float:
    found = caught(n // slices, golden, slices=slices) if in_slice else caught(n, golden)
    share = found.against_stable if has_stable else found.without_stable
    assert share is not None
    return share


def told(name: str, n: int, slices: int, found: Counter[str], runs: int, more: str = "") -> str:
    return f"| {name} | {n} | {slices} |{more} {found['failed'] / runs:.1%} | {found['undecided'] / runs:.1%} |"


if __name__ == "__main__":
    main()
