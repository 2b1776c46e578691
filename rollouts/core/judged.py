"""What one guard's counts prove in a step: the evidence as the rules compare it with their bars."""

from __future__ import annotations

from dataclasses import dataclass

from rollouts.core.evidence import Side, Window, attempts_to_go, fixed_sums, log_mean, mixed
from rollouts.core.guard_tracker import GuardTracker
from rollouts.core.policy import Guard
from rollouts.core.two_by_two import by_chance, excess_of

#: Standard deviations within which an excess is due to chance. Source: docs/rollouts.md, "One bad replica".
BY_CHANCE_SIGMAS = 1.0


@dataclass(frozen=True)
class Judged:
    """Evidence of a guard's counts in this step. Every `log_e_*` is compared with the bar of its side.

    `log_e_worse`: the candidate is worse than stable, as the average over the guard's points. `log_e_fine`: it is close
    enough to the reference, at the point where that is proven least. `log_e_better`: it fares better than stable.
    `log_e_over`, `log_e_stable_over`: the arm is over the objective, independent of the other. Counts and `phi` are those of
    the guard's own name. `farthest` is the point at which the candidate's bad attempts are most over stable's share, and what
    it counted; `beyond_chance`: by how many they are over it at some point, less what chance adds to that.

    `own_candidate`, `own_stable`: the bad attempts that are held against each arm, if these are not all. The rates and
    `log_e_over` rest on them. `is_stable_over`: stable was over the objective in the last minute. `convinced`: the counter
    with the strongest evidence against the candidate, and the counts of that evidence. `stable_failing`: bad and all of stable's newest
    attempts, if most fail wherever they go.
    """

    guard: Guard
    bad_candidate: int
    candidate: int
    bad_stable: int
    stable: int
    phi: float
    log_e_worse: float
    log_e_fine: float
    log_e_over: float
    log_e_stable_over: float
    to_go: int | None  # further attempts of the candidate like those so far until it is proven fine; None: unknown
    farthest: tuple[str, Window] | None = None
    beyond_chance: float | None = None
    log_e_better: float = 0.0
    own_candidate: float | None = None
    own_stable: float | None = None
    phi_stable: float = 1.0
    is_stable_over: bool = False
    convinced: tuple[str, Window] | None = None
    stable_failing: tuple[int, int] | None = None

    @property
    def window(self) -> Window:
        """All counts of the guard's own name."""
        return Window(self.bad_candidate, self.candidate, self.bad_stable, self.stable)

    @property
    def excess(self) -> float:
        """The candidate's bad attempts beyond stable's share, at the point at which these are most."""
        return excess_of(*(self.farthest[1] if self.farthest else self.window))

    @property
    def rate_candidate(self) -> float:
        bad = self.bad_candidate if self.own_candidate is None else self.own_candidate
        return bad / self.candidate if self.candidate else 0.0

    @property
    def rate_stable(self) -> float:
        bad = self.bad_stable if self.own_stable is None else self.own_stable
        return bad / self.stable if self.stable else 0.0

    @property
    def share_stable(self) -> float:
        """All of stable's bad attempts, as a share."""
        return self.bad_stable / self.stable if self.stable else 0.0

    @property
    def limit(self) -> float:
        """The share over which the objective counts as broken."""
        return self.guard.roll_back_over.of(self.guard.max_frac)


def judge_guard(guard: Guard, watch: GuardTracker, *, has_stable: bool, bar_fine: float) -> Judged:
    """The evidence of one guard as it stands.

    An average of e-values is one, however they depend on each other: it disproves "worse at no point". "Worse at some
    point" is disproven only when it is at each of them, so the promote side takes the least.
    """
    seen, own = watch.evidence, watch.evidence.point(guard.name)
    limit = guard.roll_back_over.of(guard.max_frac)
    name = guard.name
    points = tuple([one for one in guard.points if one in seen.points]) if has_stable else ()
    points, phi = points or (name,), watch.dispersion.phi(name)
    worse = {one: seen.log_e_worse(one) for one in points}
    strongest = max(points, key=worse.__getitem__)
    own_candidate, own_stable = seen.own_bad(name)
    fine = {one: seen.point(one).fine for one in points}
    if not has_stable:
        fine = {name: fixed_sums(own.bad_candidate, seen.candidate, guard.promote_within.of(guard.max_frac), Side.FINE)}
    log_e_fine = {one: mixed(sums, watch.dispersion.phi(one)) for one, sums in fine.items()}
    least = min(log_e_fine, key=log_e_fine.__getitem__)
    counted = [(one, seen.point(one).window) for one in points]
    over = [excess_of(*window) for _, window in counted]
    chance = [BY_CHANCE_SIGMAS * by_chance(*window[1:], watch.dispersion.phi_stable(one)) for one, window in counted]
    return Judged(
        guard,
        own.bad_candidate,
        seen.candidate,
        own.bad_stable,
        seen.stable,
        phi,
        log_e_worse=log_mean(list(worse.values())) if has_stable else 0.0,
        log_e_fine=log_e_fine[least],
        log_e_over=mixed(fixed_sums(own_candidate, seen.candidate, limit, Side.WORSE), phi)
        if has_stable
        else worse[name],
        log_e_stable_over=mixed(
            fixed_sums(own_stable, seen.stable, limit, Side.WORSE), watch.dispersion.phi_stable(name)
        ),
        to_go=attempts_to_go(fine[least], seen.point(least).candidate, watch.dispersion.phi(least), bar_fine),
        farthest=counted[over.index(max(over))],
        beyond_chance=max(more - less for more, less in zip(over, chance, strict=True)),
        log_e_better=mixed(seen.better, phi) if has_stable else 0.0,
        own_candidate=own_candidate,
        own_stable=own_stable,
        phi_stable=watch.dispersion.phi_stable(name),
        is_stable_over=has_stable and watch.minute.is_over,
        convinced=(strongest, seen.point(strongest).convincing.counts),
        stable_failing=watch.minute.failing if has_stable else None,
    )
