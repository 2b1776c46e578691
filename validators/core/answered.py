"""How many requests a server had answered at each instant: what its growth is measured against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from validators.core.load import Attempt


@dataclass(frozen=True)
class Answered:
    """Requests that ended in each whole second since `began_s`, which is seconds of the Unix epoch."""

    began_s: float
    per_s: tuple[int, ...]

    @property
    def ended_s(self) -> float:
        return self.began_s + len(self.per_s)

    @property
    def requests(self) -> int:
        return sum(self.per_s)

    def until(self, instants_s: Sequence[float]) -> list[float]:
        """How many had ended at each of these instants, in parts of one within a second."""
        totals = [0, *accumulate(self.per_s)]
        out = []
        for instant_s in instants_s:
            after_s = min(max(0.0, instant_s - self.began_s), float(len(self.per_s)))
            whole = min(int(after_s), len(self.per_s) - 1)
            out.append(totals[whole] + (after_s - whole) * self.per_s[whole])
        return out

    def as_evidence(self) -> dict[str, Any]:
        return {"began_s": round(self.began_s, 3), "per_s": list(self.per_s)}


def ended_at(attempts: Sequence[Attempt], now_s: float) -> list[float]:
    """When, by the Unix clock, those that were sent ended, of a run whose last attempt ended just now, at `now_s`."""
    began_s = now_s - max((one.done_s for one in attempts), default=0.0)
    return [began_s + one.done_s for one in attempts if one.is_sent]


def answered_at(instants_s: Sequence[float]) -> Answered | None:
    """Of requests that ended at these instants, in any order; None for none."""
    if not instants_s:
        return None
    began_s = min(instants_s)
    per_s = [0] * (int(max(instants_s) - began_s) + 1)
    for instant_s in instants_s:
        per_s[int(instant_s - began_s)] += 1
    return Answered(began_s, tuple(per_s))


def joined(first: Answered | None, second: Answered | None) -> Answered | None:
    """Both, the second having begun after the first ended; its whole seconds count from the first's beginning."""
    if first is None or second is None:
        return first or second
    gap = max(0, round(second.began_s - first.ended_s))
    return Answered(first.began_s, (*first.per_s, *[0] * gap, *second.per_s))


def answered_of(evidence: Mapping[str, Any]) -> Answered | None:
    """What `as_evidence` told under `answered`, or None."""
    told = evidence.get("answered")
    return Answered(float(told["began_s"]), tuple(told["per_s"])) if told else None
