"""Verdicts: five words, never a boolean, and how several combine.

`failed` means the release is bad, `errored` the check broke, `undecided` too little evidence, `skipped` not run.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Verdict(StrEnum):
    PASSED = "passed"
    SKIPPED = "skipped"
    UNDECIDED = "undecided"
    ERRORED = "errored"
    FAILED = "failed"


#: Worst last. A skipped gate is worse than a passed one: absence of evidence never passes.
SEVERITY: tuple[Verdict, ...] = (
    Verdict.PASSED, Verdict.SKIPPED, Verdict.UNDECIDED, Verdict.ERRORED, Verdict.FAILED,
)


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst verdict; `undecided` for none at all."""
    return max(verdicts, key=SEVERITY.index, default=Verdict.UNDECIDED)
