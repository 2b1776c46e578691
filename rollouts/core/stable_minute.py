"""Stable's own last minute: whether stable is over its objective now, and whether that has lasted.

An incident excuses the candidate while it lasts, and no longer. So the rule reads the last minute, not the average of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollouts.core.dispersion import Dispersion
from rollouts.core.evidence import Side, fixed_sums, mixed

#: Number of parts of the minute, and the seconds of each part.
PARTS, PART_S = 12, 5.0
#: Stable is over its objective when the minute's counts are ten to one for it, and until their share is within it again.
OVER_LOG_E = math.log(10)
#: Number of parts that must be over for an incident to last: 20 s. A clump of failures that ends within a few seconds is no incident.
LASTING_PARTS = 4
#: Most of stable's requests fail if more than half of so many newest attempts do, or of more.
LEAST_LAST = 20
#: How stable scatters is remembered anew so often, in seconds, at moments at which the newest parts are within the objective.
CALM_S, NEWEST = 60.0, 2


@dataclass(frozen=True)
class StableMinute:
    """Stable's own bad attempts, all attempts, and all bad ones in the parts of the last minute, the newest last.

    Bad attempts that would fail on any release are not stable's own. One caller can cause those for ever, so they do not count, unless
    most of stable's requests fail (`failing`): no caller explains that.
    `is_over`: stable is over its objective. `has_lasted`: it was so for some time, since it was last within it. `calm` is the
    dispersion as it was before, at `calm_at`.
    """

    part: int = -1
    parts: tuple[tuple[float, int, float], ...] = ()
    is_over: bool = False
    has_lasted: bool = False
    calm: Dispersion = field(default_factory=Dispersion)
    calm_at: float | None = None

    def after(
        self,
        at: float,
        bad: float,
        attempts: int,
        *,
        name: str,
        limit: float,
        dispersion: Dispersion,
        all_bad: float | None = None,
    ) -> StableMinute:
        """Returns the minute with the counts up to `at` (seconds). `dispersion` contains these counts; `name` is the guard's counter.
        `all_bad`: stable's own and common bad attempts; None if there are no common ones."""
        minute = self._counted(int(at // PART_S), bad, attempts, bad if all_bad is None else all_bad)
        phi = minute.calm.phi_stable(name)
        is_proven = mixed(fixed_sums(minute.bad, minute.attempts, limit, Side.WORSE), phi) >= OVER_LOG_E
        is_over = is_proven or (minute.is_over and minute.share > limit)
        lasting = sum(_is_over(part, limit) for part in minute.parts) >= LASTING_PARTS
        minute = replace(minute, is_over=is_over, has_lasted=is_over and (minute.has_lasted or lasting))
        if self.has_lasted or (minute.calm_at is not None and at - minute.calm_at < CALM_S):
            return minute  # `dispersion` still has the incident in it that ends here
        is_calm = minute.share <= limit and not any(_is_over(part, limit) for part in minute.parts[-NEWEST:])
        return replace(minute, calm=dispersion, calm_at=at) if is_calm or minute.calm_at is None else minute

    def _counted(self, part: int, bad: float, attempts: int, all_bad: float) -> StableMinute:
        if part == self.part and self.parts:
            *before, (old_bad, old, old_all) = self.parts
            return replace(self, parts=(*before, (old_bad + bad, old + attempts, old_all + all_bad)))
        passed = part - self.part if self.parts else PARTS
        empty = ((0.0, 0, 0.0),) * min(PARTS, max(0, passed - 1))
        return replace(self, part=part, parts=(*self.parts, *empty, (bad, attempts, all_bad))[-PARTS:])

    @property
    def failing(self) -> tuple[int, int] | None:
        """Bad and all of stable's newest attempts, if most of them are bad wherever they go; else None."""
        bad, attempts, own = 0.0, 0, 0.0
        for own_bad, more, all_bad in reversed(self.parts):
            bad, attempts, own = bad + all_bad, attempts + more, own + own_bad
            if attempts >= LEAST_LAST:
                break
        is_most = attempts >= LEAST_LAST and 2 * bad > attempts
        return (round(bad), attempts) if is_most and own < bad else None

    @property
    def bad(self) -> float:
        """The bad attempts that count: all of them while most fail."""
        which = 2 if self.failing else 0
        return sum(part[which] for part in self.parts)

    @property
    def attempts(self) -> int:
        return sum(attempts for _, attempts, _ in self.parts)

    @property
    def share(self) -> float:
        """The bad share of the last minute; 0 without attempts."""
        return self.bad / self.attempts if self.attempts else 0.0

    def as_history(self) -> StableMinute:
        """For a new rollout: earlier counts weigh little."""
        return replace(self, calm=self.calm.as_history())

    def to_json(self) -> list[Any]:
        counts = [
            [round(bad, 3), attempts, *([round(all_bad, 3)] if all_bad != bad else [])]
            for bad, attempts, all_bad in self.parts
        ]
        return [self.part, counts, self.is_over, self.has_lasted, self.calm.to_json(), self.calm_at]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> StableMinute:
        """Nothing known for a state of an older version."""
        if not value:
            return cls()
        part, counts, is_over, has_lasted, calm, calm_at = value
        parts = tuple((bad, attempts, *(others or [bad])) for bad, attempts, *others in counts)
        return cls(part, parts, is_over, has_lasted, Dispersion.from_json(calm), calm_at)


def _is_over(part: tuple[float, int, float], limit: float) -> bool:
    """Whether a part of the minute is over the objective, or most of its attempts are bad wherever they go."""
    bad, attempts, all_bad = part
    return bad > limit * attempts or (all_bad > bad and 2 * all_bad > attempts)
