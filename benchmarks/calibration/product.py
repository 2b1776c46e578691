"""The product's own decisions for many rollouts at once: what `rollouts.core.replay.walk` does, one array element for each run.

The formulas are the product's array functions; only the bookkeeping of absorb() and the order of decide()'s questions are
written again here, for arrays. tests/core/test_calibration.py walks the same traffic through the real decide() and demands the
same weights, the same end and the same tick of every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from benchmarks.calibration.arrays import increments_of, mixed_of
from benchmarks.calibration.minutes import Minutes
from benchmarks.calibration.rows import Failing, MostlyFailings
from benchmarks.calibration.traffic import ERRORS, Second
from benchmarks.calibration.vectorised import Dispersions, fixed_sums_of, worse_of
from rollouts.core.decision import Code
from rollouts.core.evidence import FIRST_ONSET, GRID, LATE_TICKS, Side
from rollouts.core.policy import FULL_BP, Guard, Policy, Source
from rollouts.core.request_mix import CHI2_99, LEAST_MIXED, PSI_MATTERS, SIZES
from rollouts.core.rules.budget import BUDGET_SIGMAS
from rollouts.core.rules.confounders import LEAST_ROUTED, SPLIT_SIGMAS, SPLIT_SLACK
from rollouts.core.rules.mostly_failing import MOSTLY_TIMES
from rollouts.core.rules.over_objective import BLAME_LOG_E, LEAST_STABLE_ATTEMPTS
from rollouts.core.step_evidence import BETTER

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]

LIVE, PROMOTED, ROLLED_BACK = 0, 1, 2
#: In the order in which decide() prefers them, reversed: the last one stays.
WEAKEST_FIRST = (
    Code.BUDGET_SPENT, Code.OBJECTIVE_BREACHED, Code.MOSTLY_FAILING, Code.ALL_FAILING, Code.WORSE_THAN_STABLE,
)  # fmt: skip
FEW = 16  # more runs than any other axis is long
#: A mixture can only reach a bar if one of its parts comes so close to it: the logarithm of how many there are.
CLOSE = float(np.log(len(GRID) + 1))


class Watched:
    """One guard of many runs: `GuardTracker` and what `snapshot.judge_guard` makes of it. Arrays by (run, point, alternative)."""

    def __init__(self, guard: Guard, policy: Policy, runs: int) -> None:
        self.guard, self.bar_worse = guard, policy.bar_worse_of(guard)
        self.limit = guard.roll_back_over.of(guard.max_frac)
        self._own = guard.points.index(guard.name)
        shape = (runs, len(guard.points), len(GRID))
        self._log_m, self._fine = np.full(shape, -np.inf), np.zeros(shape)
        self._ticks = np.zeros(runs)
        self.xc, self.nc, self.xb, self.nb = (np.zeros(runs) for _ in range(4))
        self.dispersions = [Dispersions(runs, policy.dispersion_window_s) for _ in guard.points]
        self._phi, self._phi_stable = np.ones((runs, len(guard.points))), np.ones((runs, len(guard.points)))
        self._better = np.zeros((runs, len(GRID)))
        self._excess, self._variance = np.zeros(runs), np.zeros(runs)  # of the stages before this one
        self._cost = [np.zeros(runs) for _ in range(5)]  # `blast_radius.ExcessFailures`
        self._waiting = np.zeros((4, runs, len(guard.points)))  # `Evidence.waiting`, of one gateway
        self.minute = Minutes(runs, self.limit, self._own, self.dispersions)

    def prepare(self, at: float, second: Second) -> None:
        """Only the scatter is learnt while there is no candidate to judge."""
        for point, dispersion in zip(self.guard.points, self.dispersions, strict=True):
            xc, xb = second.counted(point)
            dispersion.absorb(at, bad_candidate=xc, candidate=second.candidate, bad_stable=xb, stable=second.stable)
        self._look()
        self._ended = self.minute.absorb(at, second.counted(self.guard.name)[1], second.stable, self.dispersions)
        for dispersion, calm in zip(self.dispersions, self.minute.calm if self._ended.any() else (), strict=False):
            dispersion.take(self._ended, calm)

    def begin(self) -> None:
        shares = _least_shares(self.dispersions)
        for dispersion in self.dispersions:
            dispersion.as_history(shares)
        self.minute.as_history(_least_shares(self.minute.calm))
        self._look()

    def _look(self) -> None:
        phis = [dispersion.phis for dispersion in self.dispersions]
        self._phi, self._phi_stable = _columns(one for one, _ in phis), _columns(one for _, one in phis)

    def absorb(self, at: float, second: Second) -> None:
        """One second of evidence."""
        guard, nc, nb = self.guard, second.candidate, second.stable
        counts = [second.counted(point) for point in guard.points]
        window = (_columns(xc for xc, _ in counts), nc[:, None], _columns(xb for _, xb in counts), nb[:, None])
        before = self._phi, self._phi_stable
        self.prepare(at, second)
        now = self._phi, self._phi_stable
        window, closes = self._closed(window)
        self._grow(worse_of(window, guard.roll_back_over, before, now), closes)
        self._fine = self._fine + increments_of(*window, guard.promote_within, Side.FINE)
        self._better = self._better + increments_of(*[one[:, self._own] for one in window], BETTER, Side.FINE)
        xc, xb = counts[self._own]
        self._charge(xc, nc, xb, nb)
        self.xc, self.nc, self.xb, self.nb = self.xc + xc, self.nc + nc, self.xb + xb, self.nb + nb
        if self._ended.any():
            self._begin_afresh(self._ended)
            self._look()

    def _closed(self, more: Sequence[Floats]) -> tuple[list[Floats], Booleans]:
        """Counts of the windows that close now, zeros for an open window, and a mask of the closed ones."""
        whole = self._waiting + np.stack(np.broadcast_arrays(*more))
        closes = (whole[1, :, 0] > 0) & (whole[3, :, 0] > 0)
        self._waiting = np.where(closes[:, None], 0.0, whole)
        return list(np.where(closes[:, None], whole, 0.0)), closes

    def _begin_afresh(self, where: Booleans) -> None:
        """Without any evidence of the stage."""
        self._log_m[where], self._fine[where], self._better[where] = -np.inf, 0.0, 0.0
        self._waiting[:, where] = 0.0
        for counts in (self._ticks, self.xc, self.nc, self.xb, self.nb):
            counts[where] = 0.0

    def _charge(self, *more: Floats) -> None:
        """`blast_radius.ExcessFailures.after`."""
        *counts, worst = self._cost
        sums = [one + other for one, other in zip(counts, more, strict=True)]
        self._cost = [*sums, np.maximum(worst, more[0])]
        well = (sums[1] > 0) & (sums[3] > 0) & (self._beyond() <= 0)
        self._cost = [np.where(well, 0.0, one) for one in self._cost]

    def keep_costs(self, where: Booleans) -> None:
        self._cost = [one[where] for one in self._cost]

    def _beyond(self) -> Floats:
        xc, nc, xb, nb, _ = self._cost
        tolerated = self.guard.roll_back_over
        share = np.minimum(1.0, tolerated.ratio * xb / np.maximum(nb, 1.0) + tolerated.plus_frac)
        return np.asarray(np.where((nc > 0) & (nb > 0), xc - nc * share, 0.0))

    def _grow(self, more: Floats, says: Booleans) -> None:
        """`evidence.onset_step`, for runs that are at different ticks."""
        self._ticks = self._ticks + says
        t = np.maximum(self._ticks, 1.0)
        late = (1 - FIRST_ONSET) * LATE_TICKS / ((LATE_TICKS + t - 2) * (LATE_TICKS + t - 1))
        begin = np.log(np.where(t == 1, FIRST_ONSET, late))[:, None, None]
        self._log_m = np.where(says[:, None, None], np.logaddexp(self._log_m, begin) + more, self._log_m)

    def log_e_worse(self) -> Floats:
        """`Judged.log_e_worse`, by run: the mean over points."""
        worse = self._worse(np.ones(len(self.nc), dtype=np.bool_))
        return np.asarray(np.logaddexp.reduce(worse, axis=1) - np.log(worse.shape[1]))

    def _worse(self, where: Booleans) -> Floats:
        """`evidence.onset_mixed` of each point, for the runs that are asked for."""
        ticks = self._ticks[where]
        later = np.where(ticks > 0, np.log((1 - FIRST_ONSET) * LATE_TICKS / (LATE_TICKS + np.maximum(ticks, 1) - 1)), 0)
        return np.logaddexp(mixed_of(self._log_m[where]), later[:, None])

    def is_worse(self) -> Booleans:
        """Whether `log_e_worse` has reached its bar."""
        found = np.zeros(len(self.nc), dtype=np.bool_)
        found[(self._log_m.max(axis=(1, 2)) >= self.bar_worse - CLOSE) & (self._ticks > 0)] = True
        if found.any():
            worse = self._worse(found)
            found[found] = np.logaddexp.reduce(worse, axis=1) - np.log(worse.shape[1]) >= self.bar_worse
        return found

    def is_suspect(self, where: Booleans) -> Booleans:
        """Whether `log_e_worse` is enough to blame the candidate for an objective, for the runs that are asked for."""
        found = where.copy()
        if found.any():
            worse = self._worse(found)
            found[found] = np.logaddexp.reduce(worse, axis=1) - np.log(worse.shape[1]) >= BLAME_LOG_E
        return found

    def is_fine(self, bar: float, where: Booleans) -> Booleans:
        """Whether `log_e_fine` has reached the bar, for the runs that are asked for; False for others."""
        found = where.copy()
        if found.any():
            found[found] = mixed_of(self._fine[found] / self._phi[found][..., None]).min(axis=1) >= bar
        return found

    def is_over(self) -> Booleans:
        """Whether the candidate is proven over the objective."""
        return self._proven_over(self.xc, self.nc, self._phi)

    def is_stable_over(self) -> Booleans:
        return self.minute.is_over

    def is_fix(self, bar: float) -> Booleans:
        """`verdicts.is_fix`."""
        found = np.asarray(self.rate_stable > self.limit)
        if found.any():
            found[found] = mixed_of(self._better[found] / self._phi[found, self._own, None]) >= bar
        return found

    def _proven_over(self, bad: Floats, attempts: Floats, phi: Floats) -> Booleans:
        found = np.asarray(bad > self.limit * attempts)  # below it no alternative gains
        if found.any():
            sums = fixed_sums_of(bad[found], attempts[found], self.limit, Side.WORSE) / phi[found, self._own, None]
            found[found] = mixed_of(sums) >= self.bar_worse
        return found

    def harm(self) -> tuple[Floats, Floats]:
        """`EngineState.harm_so_far` of this guard: lasting bad attempts over its tolerance, and their variance."""
        xc, nc, xb, nb, worst = self._cost
        pooled = (xc + xb) / np.maximum(nc + nb, 1.0)
        ratio = self.guard.roll_back_over.ratio
        spread = pooled * (1 - pooled) * nc * (1 + ratio**2 * nc / np.maximum(nb, 1.0))
        lasting = np.maximum(0.0, self._beyond() - worst)
        return self._excess + lasting, self._variance + np.where((nc > 0) & (nb > 0), spread, 0.0)

    def has_spent(self, budget_bad: int) -> Booleans:
        """Whether the harm is surely over the budget."""
        excess, variance = self.harm()
        phi = self._phi[:, self._own]
        return np.asarray(excess - BUDGET_SIGMAS * np.sqrt(np.maximum(0.0, phi * variance)) >= budget_bad)

    @property
    def rate_candidate(self) -> Floats:
        return np.asarray(self.xc / np.maximum(self.nc, 1.0))

    @property
    def rate_stable(self) -> Floats:
        return np.asarray(self.xb / np.maximum(self.nb, 1.0))

    def forget(self, where: Booleans) -> None:
        """A new weight: evidence begins afresh; the scatter of stable and the harm done are kept."""
        excess, variance = self.harm()
        self._excess[where], self._variance[where] = excess[where], variance[where]
        self._begin_afresh(where)
        for counts in self._cost:
            counts[where] = 0.0


def _least_shares(dispersions: Sequence[Dispersions]) -> list[Floats]:
    shares = [[one.share for one in dispersion.stable] for dispersion in dispersions]
    return [np.minimum.reduce(widths) for widths in zip(*shares, strict=True)]


def _columns(parts: Iterable[Floats]) -> Floats:
    return np.stack(list(parts), axis=1)


class Mixes:
    """`mix.Mix` for many runs: requests by class of size, in this stage."""

    def __init__(self, runs: int) -> None:
        self.candidate, self.stable = np.zeros((runs, len(SIZES) + 1)), np.zeros((runs, len(SIZES) + 1))

    def absorb(self, second: Second) -> None:
        if any(name in second.bad for name in SIZES):
            nothing = (np.zeros_like(second.candidate), np.zeros_like(second.stable))
            over = [second.bad.get(name, nothing) for name in SIZES]
            self.candidate = self.candidate + _classes(second.candidate, [one for one, _ in over])
            self.stable = self.stable + _classes(second.stable, [one for _, one in over])

    def differs(self) -> Booleans:
        n, m = self.candidate.sum(axis=1, keepdims=True), self.stable.sum(axis=1, keepdims=True)
        classes = self.candidate.shape[1]
        p, q = (self.candidate + 0.5) / (n + classes / 2), (self.stable + 0.5) / (m + classes / 2)
        psi = ((p - q) * np.log(p / q)).sum(axis=1)
        used = ((self.candidate > 0) | (self.stable > 0)).sum(axis=1)
        chance = np.array(CHI2_99)[np.clip(used - 1, 0, len(CHI2_99) - 1)]
        noise = (1 / np.maximum(n, 1) + 1 / np.maximum(m, 1))[:, 0] * chance
        enough = (np.minimum(n, m)[:, 0] >= LEAST_MIXED) & (used >= 2)
        return np.asarray(enough & (psi > np.maximum(noise, PSI_MATTERS)))

    def forget(self, where: Booleans) -> None:
        self.candidate[where] = self.stable[where] = 0.0


def _classes(attempts: Floats, over: list[Floats]) -> Floats:
    falling = [attempts, *over, np.zeros_like(attempts)]
    return _columns(np.maximum(0.0, larger - smaller) for larger, smaller in pairwise(falling))


class Product:
    """Many rollouts of one policy. `weight_frac`, `state`, `ended_s`, `code`, `was_frozen` (both arms were bad) and
    `was_excused` (the mix of requests differed) are what one may read, by run.

    What is kept for judging is kept for live runs only: `_ids` says which these are.
    """

    def __init__(self, policy: Policy, runs: int) -> None:
        self.policy = policy.facing(has_stable=True)
        stages = [*self.policy.steps, self.policy.bake]
        self._weights = np.array([stage.weight_bp for stage in stages], dtype=np.float64) / FULL_BP
        self._min_s = np.array([stage.min_s for stage in stages])
        self._min_samples = np.array([stage.min_samples for stage in stages])
        self.stage: Whole = np.zeros(runs, dtype=np.int64)
        self.state: Whole = np.zeros(runs, dtype=np.int64)
        self.ended_s = np.full(runs, np.inf)
        self.code = np.full(runs, "", dtype=object)
        self.was_frozen, self.was_excused = np.zeros(runs, dtype=np.bool_), np.zeros(runs, dtype=np.bool_)
        self._ids = np.arange(runs)
        guards = [guard for guard in self.policy.guards if guard.source is Source.GATEWAY]
        self.watched = [Watched(guard, self.policy, runs) for guard in guards]
        self._failing, self._mostly, self._mixes = Failing(runs), MostlyFailings(runs), Mixes(runs)
        self._began = _Began(np.zeros(runs), np.zeros(runs))

    @property
    def weight_frac(self) -> Floats:
        return np.asarray(self._weights[self.stage])

    def prepare(self, at: float, second: Second) -> None:
        """A second in which all traffic goes to stable, while the candidate is being prepared."""
        for watched in self.watched:
            watched.prepare(at, second)
        self._began.at[:] = self._began.seen_at[:] = at

    def begin(self) -> None:
        """The first weight is written: what was counted until now is history."""
        for watched in self.watched:
            watched.begin()

    def absorb(self, at: float, second: Second) -> None:
        """One tick: counts in, evidence, decision, and the next weight where it advances. Nothing for runs that ended."""
        self._forget_the_ended()
        if not len(self._ids):
            return
        mine = second.of(self._ids)
        for watched in self.watched:
            watched.absorb(at, mine)
        self._failing.absorb(at, mine)
        self._mostly.absorb(at, mine)
        self._mixes.absorb(mine)
        self._began.seen_at = np.where(mine.candidate > 0, at, self._began.seen_at)
        is_live = self.state[self._ids] == LIVE
        broken, is_shared, is_excused = self._breach()
        is_broken = is_live & (broken != "")
        holds = is_shared | is_excused | self._burning()
        self._end(is_broken, ROLLED_BACK, at, broken)
        self.was_frozen[self._ids[is_live & ~is_broken & ~is_excused & holds]] = True
        self.was_excused[self._ids[is_live & ~is_broken & is_excused]] = True
        self._go_on(is_live & ~is_broken & ~holds, at)

    def _forget_the_ended(self) -> None:
        """Once they are worth the copying."""
        is_live, n = self.state[self._ids] == LIVE, len(self._ids)
        if is_live.mean() > 0.8 or (is_live.any() and n <= FEW):
            return
        self._ids = self._ids[is_live]
        series = [
            one for w in self.watched for d in (*w.dispersions, *w.minute.calm) for one in (d.candidate, *d.stable)
        ]
        minutes = [watched.minute for watched in self.watched]
        for part in (*self.watched, *minutes, *series, self._failing, self._mostly, self._mixes, self._began):
            for name, value in vars(part).items():
                if isinstance(value, np.ndarray):
                    axis = len(value.shape) - 1 if part in minutes else value.shape.index(n)
                    setattr(part, name, np.compress(is_live, value, axis=axis))
        for watched in self.watched:
            watched.keep_costs(is_live)

    def _breach(self) -> tuple[npt.NDArray[np.object_], Booleans, Booleans]:
        """The reason code of a breach (empty for none), where both arms are bad alike, and where the mix of requests excuses it."""
        code = np.full(len(self._ids), "", dtype=object)
        is_shared, is_excused = np.zeros(len(self._ids), dtype=np.bool_), np.zeros(len(self._ids), dtype=np.bool_)
        proofs: list[tuple[Code, Booleans, Booleans]] = []  # what is proven, and where another mix may explain it
        for watched in self.watched:
            is_over = watched.is_over() & (watched.nb >= LEAST_STABLE_ATTEMPTS)
            stable_too = watched.is_stable_over() | (is_over & ~watched.is_suspect(is_over))
            is_over &= ~watched.is_fix(self.policy.bar_fine)
            is_shared |= is_over & stable_too
            beyond = watched.guard.kind.beyond_mix
            may_be = watched.rate_candidate - watched.rate_stable <= beyond
            if self.policy.budget_bad is not None and watched.guard.kind.spends:
                proofs.append((Code.BUDGET_SPENT, watched.has_spent(self.policy.budget_bad), np.zeros_like(may_be)))
            proofs.append((Code.OBJECTIVE_BREACHED, is_over & ~stable_too, may_be))
            proofs.append((Code.WORSE_THAN_STABLE, watched.is_worse(), may_be))
        differs = self._mixes.differs() if any(proof.any() for _, proof, _ in proofs) else is_excused
        fails = self._failing.fails(self.policy.all_failing_attempts)
        stable_too = fails & ~self._failing.is_stable_better(fails)
        for watched in (one for one in self.watched if one.guard.indicator == ERRORS and fails.any()):
            stable_too |= watched.is_stable_over()
        is_shared |= fails & stable_too
        proofs.append((Code.ALL_FAILING, fails & ~stable_too, np.zeros_like(fails)))
        for watched in (one for one in self.watched if one.guard.indicator == ERRORS and not one.guard.is_dry_run):
            least_bad = MOSTLY_TIMES * self.policy.all_failing_attempts
            mostly = self._mostly.are_proven(least_bad, watched.guard.roll_back_over) & ~watched.is_stable_over()
            proofs.append((Code.MOSTLY_FAILING, mostly, np.zeros_like(mostly)))
        for wanted in WEAKEST_FIRST:
            for _, proof, may_be in (one for one in proofs if one[0] is wanted):
                code[proof & ~(differs & may_be)] = wanted
                is_excused = is_excused | (proof & differs & may_be)
        return code, is_shared, is_excused

    def _burning(self) -> Booleans:
        found = np.zeros(len(self._ids), dtype=np.bool_)
        for watched in self.watched:
            burns = watched.is_stable_over() & (watched.rate_candidate > watched.limit)
            found |= burns & ~watched.is_fix(self.policy.bar_fine)
        return found

    def _is_split_off(self) -> Booleans:
        one = self.watched[0]
        routed, wanted = one.nc + one.nb, self._weights[self.stage[self._ids]]
        spread = np.sqrt(wanted * (1 - wanted) / np.maximum(routed, 1.0))
        off = np.abs(one.nc / np.maximum(routed, 1.0) - wanted) > SPLIT_SLACK + SPLIT_SIGMAS * spread
        return np.asarray(off & (routed >= LEAST_ROUTED))

    def _go_on(self, where: Booleans, at: float) -> None:
        stage, began = self.stage[self._ids], self._began
        proven = where & (self.watched[0].nc >= self._min_samples[stage]) & (at - began.at >= self._min_s[stage])
        if not proven.any():
            return
        proven &= ~self._is_split_off() & (at - began.seen_at < self.policy.no_data_s)
        for watched in self.watched:
            proven = watched.is_fine(self.policy.bar_fine, proven)
            proven = proven & ~watched.is_suspect(proven)
        is_last = stage == len(self._weights) - 1
        self._end(proven & is_last, PROMOTED, at, np.full(len(where), Code.PROVEN, dtype=object))
        advances = proven & ~is_last
        self.stage[self._ids[advances]] += 1
        began.at[advances] = began.seen_at[advances] = at
        for part in (*self.watched, self._mostly, self._mixes):
            part.forget(advances)

    def _end(self, where: Booleans, state: int, at: float, code: npt.NDArray[np.object_]) -> None:
        ids = self._ids[where]
        self.state[ids], self.ended_s[ids], self.code[ids] = state, at, code[where]


@dataclass
class _Began:
    """When each run's stage began, and when the candidate was last seen."""

    at: Floats
    seen_at: Floats
