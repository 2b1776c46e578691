"""How much more bad attempts scatter than independent ones would: what log evidence has to be divided by."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

#: A dispersion that shows is multiplied by this. Source: measured false alarms fall below nominal at 1.5 (section 2.4).
DISPERSION_SAFETY = 1.5
MIN_WINDOWS = 5.0


#: Each new window takes this much off the weight of the older ones, so that an incident is forgotten after some minutes.
FORGETTING = 0.04


@dataclass(frozen=True)
class Dispersion:
    """How much more the reference arm's bad counts scatter from window to window than independent ones would.

    Kept as sums over finished windows of `window_s` seconds, the older ones weighing less, plus the window that is open.
    """

    windows: float = 0.0
    bad: float = 0.0
    attempts: float = 0.0
    squares: float = 0.0  # sum of bad^2 / attempts
    open_bad: int = 0
    open_attempts: int = 0
    open_since: float = 0.0

    def after(self, at: float, bad: int, attempts: int, *, window_s: float) -> Dispersion:
        """With the counts that ended at `at` (seconds); closes the open window when it is long enough."""
        if self.open_since == 0.0:
            return replace(self, open_since=at, open_bad=bad, open_attempts=attempts)
        grown = replace(self, open_bad=self.open_bad + bad, open_attempts=self.open_attempts + attempts)
        if at - self.open_since < window_s:
            return grown
        if grown.open_attempts == 0:
            return replace(grown, open_since=at)
        kept = 1 - FORGETTING
        return Dispersion(
            windows=self.windows * kept + 1,
            bad=self.bad * kept + grown.open_bad,
            attempts=self.attempts * kept + grown.open_attempts,
            squares=self.squares * kept + grown.open_bad**2 / grown.open_attempts,
            open_since=at,
        )

    @property
    def phi(self) -> float:
        """The factor, at least 1, to divide log evidence by; 1 while the scatter is what chance alone would show.

        Source: Pearson's chi-square over its degrees of freedom, which is the Fano factor for windows of unequal size.
        For independent counts its standard deviation is sqrt(2 / (windows - 1)); two of them over 1 is "shows".
        """
        if self.windows < MIN_WINDOWS or self.bad <= 0:
            return 1.0
        spread = (self.squares * self.attempts / self.bad - self.bad) / (self.windows - 1)
        if spread <= 1 + 2 * math.sqrt(2 / (self.windows - 1)):
            return 1.0
        return DISPERSION_SAFETY * spread

    def to_json(self) -> list[float]:
        return [self.windows, self.bad, self.attempts, self.squares, self.open_bad, self.open_attempts, self.open_since]

    @classmethod
    def from_json(cls, value: list[float]) -> Dispersion:
        windows, bad, attempts, squares, open_bad, open_attempts, since = value
        return cls(windows, bad, attempts, squares, int(open_bad), int(open_attempts), since)
