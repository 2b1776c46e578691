"""Verdicts: five words, never a boolean, and how several combine.

`failed` means the release is bad, `errored` the check broke, `undecided` too little evidence, `skipped` not run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    PASSED = "passed"
    SKIPPED = "skipped"
    UNDECIDED = "undecided"
    ERRORED = "errored"
    FAILED = "failed"


#: Worst last. A skipped gate is worse than a passed one: absence of evidence never passes.
SEVERITY: tuple[Verdict, ...] = (
    Verdict.PASSED,
    Verdict.SKIPPED,
    Verdict.UNDECIDED,
    Verdict.ERRORED,
    Verdict.FAILED,
)


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst verdict; `undecided` for none at all."""
    return max(verdicts, key=SEVERITY.index, default=Verdict.UNDECIDED)


@dataclass(frozen=True)
class Judgement:
    """What one gate found: a verdict, one sentence of reason, and the measurements as JSON."""

    verdict: Verdict
    reason: str
    evidence: dict[str, Any] = field(default_factory=dict)


def combine(
    verdicts: Iterable[tuple[str, Verdict]], *, undecided_allowed: frozenset[str] = frozenset()
) -> tuple[Verdict, str]:
    """The verdict over all gates, with a sentence. A gate in `undecided_allowed` counts as passed where it is undecided."""
    given = list(verdicts)
    let_go = [gate for gate, verdict in given if verdict is Verdict.UNDECIDED and gate in undecided_allowed]
    counted = [(gate, verdict) for gate, verdict in given if gate not in let_go]
    overall = worst_of(verdict for _, verdict in counted) if counted else Verdict.UNDECIDED
    if overall is Verdict.PASSED:
        undecided = f"; {', '.join(let_go)} undecided, which the policy allows" if let_go else ""
        return overall, f"{len(counted)} of {len(given)} gates passed{undecided}."
    guilty = [gate for gate, verdict in counted if verdict is overall]
    return overall, f"{', '.join(guilty)} {overall.value}." if guilty else "No gate gave a verdict that counts."
