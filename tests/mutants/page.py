"""The published page and its figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.meet import MOST_S
from tests.mutants.score import GOAL, Score
from tests.mutants.session import MOST_WATCHED_S

HEAD = """# Mutation score of the pure cores

A mutant is the product with one small change: a comparison at its limit, `+` for `-`, `and` for `or`, a `not` or a minus
dropped, a number one larger or twice as large, `True` for `False`, `min` for `max`, a result left out. The tests should
notice. This page says of each module of a `core` how many they did notice (*killed*); the goal is {goal:.0%} in each.
It is written by `python -m tests.mutants --page`{command}; `make mutants` prints the same.

- A mutant meets the tests of pure functions (`tests/core`, `tests/histories`) that run its line, the quick ones first,
  at most {most:.0f} s of them; one that acts at import meets the tests of the files that use its module. A mutant that
  only a slow test (over about {watched:.0f} s), or a test with a database, would notice counts as survived.
- A mutant whose tests do not end in their time counts as killed.
- Text is not changed, nor are annotations, decorators, docstrings, assertions and type checks.
- *Equivalent* are mutants that no test can notice; each is listed with its reason in `tests/mutants/equivalent.toml`
  and left out of the score.
- `make mutants ARGS="rollouts/core/freeze.py --survivors"` is one module, with what survived; `--check` fails below the goal.
{sample}
| module | mutants | {met}killed | survived | equivalent | score |
|---|---:|{rule}---:|---:|---:|---:|
"""


def write(folder: Path, scores: Sequence[Score], sample: int, seed: int) -> None:
    """`mutants.md` and `mutants.json` in this folder. `sample` is 0 where every mutant was met."""
    (folder / "mutants.md").write_text(page(scores, sample, seed))
    (folder / "mutants.json").write_text(json.dumps(figures(scores, sample, seed), indent=1) + "\n")


def page(scores: Sequence[Score], sample: int, seed: int) -> str:
    command = f" --sample {sample} --seed {seed}`" if sample else ""
    told = (
        f"- At most {sample} mutants of each module were drawn (seed {seed}); the counts are of these.\n"
        if sample
        else ""
    )
    head = HEAD.format(
        goal=GOAL,
        most=MOST_S,
        watched=MOST_WATCHED_S,
        command="",
        sample=told,
        met="met | " if sample else "",
        rule="---:|" if sample else "",
    )
    if sample:
        head = head.replace("--page`", f"--page{command}")
    return head + "".join(_row(one, is_sample=bool(sample)) for one in [*scores, _sum(scores)])


def figures(scores: Sequence[Score], sample: int, seed: int) -> dict[str, object]:
    return {
        "goal": GOAL,
        "sample": {"most": sample, "seed": seed} if sample else None,
        "modules": {
            one.module: {
                "mutants": one.mutants,
                "met": one.met,
                "killed": one.killed,
                "late": one.late,
                "survived": len(one.survivors),
                "equivalent": one.equivalent,
                "score": round(one.share, 4),
            }
            for one in scores
        },
    }


def _row(one: Score, *, is_sample: bool) -> str:
    met = f"{one.met} | " if is_sample else ""
    counts = f"{one.mutants} | {met}{one.killed} | {len(one.survivors)} | {one.equivalent}"
    return f"| {one.module} | {counts} | {one.share:.1%} |\n"


def _sum(scores: Sequence[Score]) -> Score:
    total = Score("**all**")
    for one in scores:
        total.mutants += one.mutants
        total.met += one.met
        total.killed += one.killed
        total.equivalent += one.equivalent
        total.survivors += one.survivors
    return total
