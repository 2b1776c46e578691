"""Whether the undo window of a promotion may close: by evidence that stable meets its objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rollouts.core.watch.watched import Standing


class UndoVerdict(StrEnum):
    MET = "met"
    BURNING = "burning"
    NOT_JUDGED = "not_judged"


@dataclass(frozen=True)
class ObjectiveResult:
    """One objective of the promoted release: its words, standing and counts since the promotion, and the evidence that it is met."""

    name: str
    words: str
    max_frac: float
    standing: Standing
    bad: int
    attempts: int
    log_e_met: float

    @property
    def sentence(self) -> str:
        share = f" ({self.bad / self.attempts:.2%})" if self.attempts else ""
        return f"{self.bad} of {self.attempts} {self.words}{share}, with {self.max_frac:.2%} allowed"


def undo_verdict(judged: Sequence[ObjectiveResult]) -> UndoVerdict:
    """An objective that burns holds the window open; without proof for each the verdict is `not_judged`."""
    standings = {one.standing for one in judged}
    if Standing.BURNING in standings:
        return UndoVerdict.BURNING
    return UndoVerdict.MET if standings == {Standing.MET} else UndoVerdict.NOT_JUDGED
