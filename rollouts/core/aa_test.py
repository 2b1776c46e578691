"""The A/A test: stable tried against itself, to see whether its failures stick together for longer than a second.

Blocks of some seconds are compared with the block that follows. Both are the same release, so one of them is worse than the
other only where failures come in spells: of a server that is unwell for a while, say. A candidate on that server alone would
look worse than stable, although nothing is wrong with its release. The evidence is a rollout's, but tempered by the scatter of
single seconds only: a longer memory of scatter would temper away the very spells that this test is there to show.

It runs in episodes. However long or bad a spell or an incident is, it makes one episode reject, and no more. Episodes together
make the alarm: three that reject in an hour and a half, four in three hours, eleven in a day; or weak evidence in most of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rollouts.core.counter_deltas import ERRORS, Counts
from rollouts.core.dispersion import MEMORY_S, SAFETY, factor
from rollouts.core.evidence import (
    GRID,
    Scatter,
    Sums,
    Tolerance,
    Window,
    log_mean,
    log_sum,
    onset_prior,
    onset_step,
)

EPISODE_S = 600.0
#: The memory of a model's rate of requests: its average forgets what was longer ago.
RATE_MEMORY_S = 300.0
#: Of one episode.
ALPHA = 0.01
#: The chance of ever alarming although every episode keeps to ALPHA.
ALPHA_ALARM = 0.001
#: Two readings further apart than this are no seconds in a row.
LONGEST_S = 3.0
#: The lengths of the blocks that are compared with their neighbours, for spells of seconds and of minutes; multiples of the first.
WIDTHS_S = (5.0, 15.0, 40.0, 120.0)
#: A share of errors that drifts by less than this part in a minute, as with the load, is no spell.
DRIFT_PER_MIN = 0.1
#: The parts of the evidence that each pair of blocks is given to multiply: little where spells are rare, half where they are usual.
STAKES = (0.05, 0.5)
#: An episode that rejected lasts for so long after, so that the end of an incident is not told as another one.
QUIET_S = 300.0
#: The alternatives of the alarm: an episode that rejects multiplies its evidence by so much, and others take away what that costs.
TIMES = (10.0, 20.0, 50.0)
#: Weak evidence in every episode is another alternative: this part is multiplied by the episode's e-value, but by no more than
#: this, and by far less if the episode rejected: what an incident every three hours brings is lost again until the next.
WEAK_STAKE, WEAK_MOST, REJECTED_MOST = 0.9, 10.0, 1.5
#: The alarm's evidence (logarithm) is held below this much over its bar and loses this much with each episode, so that an
#: alarm ends within a day after the spells did. Both only make evidence smaller, which keeps its promise.
MOST_OVER, FADES = 2.0, 0.02
#: No pair of blocks multiplies evidence by more than this (logarithm); less than it could is always allowed.
MOST_OF_PAIR = 30.0
#: Fewer seconds show no scatter.
LEAST_SECONDS = 3.0
#: Both blocks are of the same release.
_ALIKE_BLOCKS = Tolerance(1.0, 0.0)
#: An episode's evidence has a member for each width, stake and ratio of the grid.
_MEMBERS = len(WIDTHS_S) * len(STAKES) * len(GRID)
_NONE: Sums = (0.0,) * _MEMBERS
#: What members weigh, which the episodes before have taught: this part is shared out anew each time, alike for all.
SHARED_ANEW = 0.05
_ALIKE: Sums = (-math.log(_MEMBERS),) * _MEMBERS
_REJECT, _ALARM = -math.log(ALPHA), -math.log(ALPHA_ALARM)


class Seconds(NamedTuple):
    """How errors scatter from second to second: sums over seconds, the older weighing less, and the last second.

    `squares` are half the squared differences of neighbours, less what their loads explain; `last` is -1 where none is known.
    """

    squares: float = 0.0
    errors: float = 0.0
    attempts: float = 0.0
    known_s: float = 0.0
    last_errors: int = 0
    last: int = -1

    def after(self, attempts: int, errors: int) -> Seconds:
        if self.last < 0:
            return self._replace(last_errors=errors, last=attempts)
        seen = self.attempts + self.last
        share = (self.errors + self.last_errors) / seen if seen > 0 else 0.0
        square = 0.5 * (errors - self.last_errors - share * (attempts - self.last)) ** 2
        kept = 1 - 1 / MEMORY_S
        return Seconds(
            self.squares * kept + square, self.errors * kept + errors, self.attempts * kept + attempts,
            self.known_s * kept + 1, errors, attempts,
        )  # fmt: skip

    @property
    def phi(self) -> float:
        """The factor to divide log evidence by."""
        return factor(self.squares, self.errors, self.known_s) if self.known_s >= LEAST_SECONDS else 1.0


class Pair(NamedTuple):
    """Two blocks in a row, and the scatter of seconds before them. `number` counts pairs since the epoch."""

    number: int
    phi: float
    attempts: tuple[int, int] = (0, 0)
    errors: tuple[int, int] = (0, 0)

    def after(self, is_second: bool, attempts: int, errors: int) -> Pair:
        (n, m), (x, y) = self.attempts, self.errors
        if is_second:
            return Pair(self.number, self.phi, (n, m + attempts), (x, y + errors))
        return Pair(self.number, self.phi, (n + attempts, m), (x + errors, y))

    def log_e(self, width_s: float, phi: float) -> list[float]:
        """The evidence, for each ratio of the grid, that one block is worse than the other, whichever it is: the average of both
        sides. `phi` is the scatter of seconds with this pair. Nothing where a block had no attempt.

        A drift adds to the scatter with the square of the count, so it tempers large counts and leaves small ones alone. Given
        both blocks' errors together it is fixed, and the evidence is valid for any sum.
        """
        (n, m), (x, y) = self.attempts, self.errors
        drift = SAFETY * 0.5 * (DRIFT_PER_MIN * width_s / 60) ** 2 * (x + y) / 2
        if not n or not m:
            return []
        before, now = self.phi + drift, phi + drift
        scatter = Scatter(before, before, now, now)
        both = [scatter.of([Window(*counts)], _ALIKE_BLOCKS) for counts in ((x, n, y, m), (y, m, x, n))]
        return [min(MOST_OF_PAIR, log_mean(sides)) for sides in zip(*both, strict=True)]


@dataclass(frozen=True)
class AATest:
    """`evidence` is this episode's, for each width, stake and ratio, and `weights` what these members weigh (logarithms); `log_m`
    is that of all episodes, for each of TIMES and for weak evidence. `rejected_at`: when this episode's reached its bar.

    `block` is the narrowest one that goes on: its number since the epoch, attempts and errors; `open` are the pairs without it.
    `error_frac` is stable's, over some minutes. `pairs` counts those that said something, of all widths.
    """

    episodes: int = 0
    rejections: int = 0
    began_at: float | None = None
    rejected_at: float | None = None
    pairs: int = 0
    seconds: Seconds = field(default_factory=Seconds)
    evidence: Sums = _NONE
    weights: Sums = _ALIKE
    log_m: Sums = ()
    error_frac: float | None = None
    last_at: float | None = None
    open: tuple[Pair, ...] = ()
    block: tuple[int, int, int] = (0, 0, 0)

    def after(self, tick: int, at: float, counts: Counts) -> AATest:
        """With what stable counted in one second that ended at `at` (seconds since the epoch); `tick` says nothing more.

        What was counted in a longer time is let go, and the open blocks with it.
        """
        if self.last_at is None or not 0 < at - self.last_at <= LONGEST_S:
            began_at = at if self.began_at is None else self.began_at
            return replace(self, last_at=at, began_at=began_at, open=(), seconds=self.seconds._replace(last=-1))
        attempts, errors = counts.attempts, counts.bad.get(ERRORS, 0)
        block, so_far, bad = self.block
        now, test = int(at // WIDTHS_S[0]), self
        if block == now and self.open:
            attempts_now, errors_now = so_far + attempts, bad + errors
        else:
            attempts_now, errors_now = attempts, errors
            test = self._with_block(at)
        test = replace(
            test, seconds=self.seconds.after(attempts, errors), block=(now, attempts_now, errors_now), last_at=at,
            error_frac=self._share(attempts, errors),
        )  # fmt: skip
        return test._ended(at) if test._is_over(at) else test

    def _with_block(self, at: float) -> AATest:
        """With the narrowest block taken into its pairs, those judged that ended before `at`, and others opened in their place."""
        block, attempts, errors = self.block
        phi, opened, closed = self.seconds.phi, [], []
        for i, width in enumerate(WIDTHS_S):
            now = int(at // width) // 2
            if not self.open:
                opened.append(Pair(now, phi))
                continue
            own = int(block * WIDTHS_S[0] // width)
            pair = self.open[i].after(own % 2 == 1, attempts, errors)
            if pair.number != now:
                closed.append((i, pair))
                pair = Pair(now, phi)
            opened.append(pair)
        test = self._judged(closed, phi, at) if closed else self
        return replace(test, open=tuple(opened))

    def _judged(self, closed: list[tuple[int, Pair]], phi: float, at: float) -> AATest:
        """With the evidence of these pairs, unless the episode has rejected already."""
        evidence, pairs = list(self.evidence), self.pairs
        for i, pair in closed:
            more = pair.log_e(WIDTHS_S[i], phi)
            if not more:
                continue
            pairs += 1
            members = [_staked(one, stake) for stake in STAKES for one in more]
            for j, one in enumerate(members, i * len(members)):
                evidence[j] += one
        if self.rejected_at is not None:
            return replace(self, pairs=pairs)
        judged = replace(self, pairs=pairs, evidence=tuple(evidence))
        return replace(judged, rejected_at=at) if judged.log_e_episode >= _REJECT else judged

    def _is_over(self, at: float) -> bool:
        if self.began_at is None or at - self.began_at < EPISODE_S:
            return False
        return self.rejected_at is None or at - self.rejected_at >= QUIET_S

    def _ended(self, at: float) -> AATest:
        """The next episode begins with fresh evidence; how failures scatter from second to second is remembered.

        To multiply by `times` on a rejection, which has a chance of at most ALPHA, a part of (times - 1) / (1 / ALPHA - 1) is bet.
        """
        has_rejected = self.rejected_at is not None
        rejection = _REJECT if has_rejected else -math.inf
        episodes = self.episodes + 1
        more = [_staked(rejection, (times - 1) / (1 / ALPHA - 1)) for times in TIMES]
        most = REJECTED_MOST if has_rejected else WEAK_MOST
        more.append(_staked(min(self.log_e_episode, math.log(most)), WEAK_STAKE))
        log_m = onset_step(self.log_m, more, episodes)
        return replace(
            self, episodes=episodes, rejections=self.rejections + has_rejected, began_at=at, rejected_at=None,
            evidence=_NONE, weights=self._taught(), log_m=tuple([min(one - FADES, _ALARM + MOST_OVER) for one in log_m]),
        )  # fmt: skip

    def _taught(self) -> Sums:
        """The members' weights for the next episode: those whose evidence grew weigh more. None of it is of that episode yet, so
        the average with these weights is an e-value as with any others.
        """
        grown = [weight + min(_REJECT, one) for weight, one in zip(self.weights, self.evidence, strict=True)]
        total = log_sum(grown)
        return tuple([math.log((1 - SHARED_ANEW) * math.exp(one - total) + SHARED_ANEW / _MEMBERS) for one in grown])

    @property
    def log_e_episode(self) -> float:
        """This episode's evidence: the average of its members."""
        return log_sum([weight + one for weight, one in zip(self.weights, self.evidence, strict=True)])

    def _share(self, attempts: int, errors: int) -> float | None:
        if not attempts:
            return self.error_frac
        share = errors / attempts
        return share if self.error_frac is None else self.error_frac + (share - self.error_frac) / 300

    @property
    def log_e(self) -> float:
        """The alarm's evidence that more episodes reject than ALPHA allows, whenever that began."""
        if not self.log_m:
            return 0.0
        _, later = onset_prior(self.episodes)
        return log_sum([later, log_mean(self.log_m)])

    @property
    def alarm(self) -> bool:
        """Whether failures are proven to stick together for longer than a second."""
        return self.log_e >= _ALARM

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {
            **plain, "seconds": [round(one, 3) for one in self.seconds[:4]], "log_m": [round(one, 4) for one in self.log_m],
            "evidence": [round(one, 3) for one in self.evidence], "weights": [round(one, 3) for one in self.weights],
            "error_frac": None if self.error_frac is None else round(self.error_frac, 6),
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AATest:
        """Blocks that were half seen are let go. Of a state of another shape only the share of errors is kept."""
        shapes = {"evidence": (_MEMBERS,), "weights": (_MEMBERS,), "log_m": (0, len(TIMES) + 1), "seconds": (4,)}
        if any(len(value.get(name, "?")) not in lengths for name, lengths in shapes.items()):
            return cls(error_frac=value.get("error_frac"))
        return cls(
            **{name: value.get(name, getattr(cls, name)) for name in _PLAIN}, error_frac=value.get("error_frac"),
            seconds=Seconds(*value["seconds"]), evidence=tuple(value["evidence"]), weights=tuple(value["weights"]),
            log_m=tuple(value["log_m"]),
        )  # fmt: skip


#: Fields of AATest that are JSON as they are.
_PLAIN = ("episodes", "rejections", "began_at", "rejected_at", "pairs")


def _staked(log_e: float, stake: float) -> float:
    """The logarithm of what an e-value makes of evidence of which only a part, the stake, is multiplied by it."""
    return math.log1p(stake * math.expm1(log_e))
