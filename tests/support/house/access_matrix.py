"""docs/access.md's tables: what each role may do, and what every address of API and pages says to each kind of caller.

The tests ask every address and compare; `make access` writes what they found. The text above the mark is written by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from accounts.core.access import CROSS_TEAM, DOING, MAY, Role, Verb

PAGE = Path(__file__).resolve().parents[3] / "docs" / "access.md"
#: Set to write the tables instead of comparing them.
WRITE = "SLUICEGATE_WRITE_ACCESS"


def section(name: str, lines: Iterable[str]) -> None:
    """The part of docs/access.md of this name must have these lines; or gets them, where the run is to write."""
    begins, ends = f"<!-- {name}: made by `make access` -->", f"<!-- end of {name} -->"
    whole = PAGE.read_text()
    before, _, rest = whole.partition(begins)
    now, _, after = rest.partition(ends)
    wanted = "\n\n" + "\n".join(lines) + "\n\n"
    if os.environ.get(WRITE):
        PAGE.write_text(before + begins + wanted + ends + after)
        return
    assert now == wanted, f"docs/access.md tells otherwise of {name}; run `make access`, and read what changed."


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(heads) + " |",
        "|" + "|".join("---" if index == 0 else ":-:" for index in range(len(heads))) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def roles_table() -> list[str]:
    """Role × verb."""
    heads = ["verb", "what it is", *(role.value for role in Role), "administrator"]
    every = [
        [f"`{verb.value}`", DOING[verb], *("yes" if verb in MAY[role] else "" for role in Role), "yes"] for verb in Verb
    ]
    held = ", ".join(f"`{role}`" for role in sorted(CROSS_TEAM))
    return [*table(heads, every), "", f"Can be held in every team at once: {held}."]


def outcomes_table(first: str, callers: Sequence[str], found: Mapping[str, Mapping[str, str]]) -> list[str]:
    """What each address (a row) says to each caller (a column)."""
    rows = [[f"`{address}`", *(told[caller] for caller in callers)] for address, told in sorted(found.items())]
    return table([first, *callers], rows)
