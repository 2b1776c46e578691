"""Policy of a rollout: stages of weight, guards, tolerances, limits and deadlines.

Units: weights in basis points, times in seconds, shares in [0, 1]. `rollouts.core.policy` reads one from JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from rollouts.core.evidence import Tolerance
from rollouts.core.freeze import FreezeWindow
from rollouts.core.indicators import ALL, Indicator
from rollouts.core.indicators import Source as Source

FULL_BP = 10_000
#: A counter above a threshold: its name, the threshold in µs, and the measure (`Indicator.measure`).
Edge = tuple[str, int, str]


class OnUndecided(StrEnum):
    HOLD = "hold"
    ROLL_BACK = "roll_back"


class WhenStableIsGone(StrEnum):
    HOLD = "hold"
    REPLACE = "replace"


@dataclass(frozen=True)
class Step:
    """One stage of weight. It ends by proof, not before `min_s` and `min_samples`; past `deadline_s` it is undecided."""

    weight_bp: int
    min_s: float
    min_samples: int  # attempts of the candidate
    deadline_s: float


@dataclass(frozen=True)
class Shadow:
    """The stage before any user is served: `sample_bp` of the requests are copied to the prober, which compares answers."""

    sample_bp: int
    min_s: float
    min_samples: int  # comparisons
    deadline_s: float

    @property
    def as_step(self) -> Step:
        return Step(0, self.min_s, self.min_samples, self.deadline_s)


@dataclass(frozen=True)
class SecondLook:
    """What follows when evidence of users' traffic first speaks against the candidate.

    With one look that evidence convicts. With more it takes the traffic away, and the rollout begins again `after_s` later;
    the last look convicts, with `alpha_second` in place of `alpha_roll_back`.
    """

    looks: int = 1
    after_s: float = 0.0
    alpha_second: float = 0.05


ONE_LOOK = SecondLook()


@dataclass(frozen=True)
class Control:
    """The share of traffic that the release before keeps in the undo window, for a comparison with stable, and whether proof that
    stable is worse takes the promotion back."""

    share_bp: int = 0
    rolls_back: bool = False


@dataclass(frozen=True)
class Guard:
    """An indicator watched against stable at the same time, and against the model's objective.

    The reference is what stable does now or, without a stable, `max_frac`. Proven over `roll_back_over` of it: roll back;
    a guard that is not critical pauses instead, one that is a dry run is only recorded. Proven within `promote_within`
    of it: good enough to go on. Without data, a guard that must have data holds the rollout; another is left out.
    """

    indicator: str  # of `indicators.ALL`
    max_frac: float
    roll_back_over: Tolerance
    promote_within: Tolerance
    threshold_us: int = 0  # of an indicator of time: the objective's own edge
    thresholds_us: tuple[int, ...] = ()  # likewise: where exceedances are counted; their e-values are averaged
    alpha: float | None = None  # its own share of the false-rollback chance over the whole rollout; None: an equal one
    is_critical: bool = True
    must_have_data: bool = True
    is_dry_run: bool = False
    label: str = ""  # of external
    bad_query: str = ""
    total_query: str = ""

    @property
    def kind(self) -> Indicator:
        return ALL[self.indicator]

    @property
    def name(self) -> str:
        """`errors`, `wrong`, `slow_250ms` or `external_checkout`."""
        if self.kind.has_thresholds:
            return point_name(self.indicator, self.threshold_us)
        return f"{self.indicator}_{self.label}" if self.source is Source.PROMETHEUS else self.indicator

    @property
    def points(self) -> tuple[str, ...]:
        """The names of the counters with averaged evidence."""
        return tuple(point_name(self.indicator, one) for one in self.thresholds_us) or (self.name,)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The gateways' counters above its thresholds; none if it has no thresholds."""
        return tuple((name, one, self.kind.measure) for name, one in zip(self.points, self.thresholds_us, strict=False))

    @property
    def source(self) -> Source:
        return self.kind.source

    @property
    def needs_proof(self) -> bool:
        """Whether a stage waits until the guard is proven fine. Any caller can send invalid requests without limit,
        and that must not decide when a rollout moves on."""
        return not self.kind.is_callers

    @property
    def words(self) -> str:
        """`errors`, `slow requests (over 250 ms)`, `wrong answers`, `refused requests`, or the label of an external
        indicator."""
        return self.words_at(self.name)

    def words_at(self, point: str) -> str:
        """Likewise of the counter of this name, which may be another threshold."""
        if self.kind.has_thresholds:
            threshold_us = next((us for name, us, _ in self.edges if name == point), self.threshold_us)
            return f"{self.kind.words} (over {threshold_us / 1000:g} ms)"
        return self.kind.words or self.label.replace("_", " ")


def point_name(indicator: str, threshold_us: int) -> str:
    """`slow_250ms`: the counter of attempts that took longer than this."""
    return f"{indicator}_{threshold_us / 1000:g}ms"


@dataclass(frozen=True)
class Policy:
    """A policy with every default in it. `document` is its canonical JSON, `digest` that JSON's name."""

    steps: tuple[Step, ...]
    bake: Step
    guards: tuple[Guard, ...]
    shadow: Shadow | None
    holdback_bp: int
    alpha_roll_back: float
    alpha_promote: float
    on_undecided: OnUndecided
    on_blind: OnUndecided
    all_failing_attempts: int
    no_data_s: float
    stale_s: float
    blind_limit_s: float
    ack_deadline_s: float
    prepare_deadline_s: float
    deadline_s: float
    dispersion_window_s: float
    budget_bad: int | None
    approvals: Mapping[str, int]
    approval_valid_s: float
    freeze_windows: tuple[FreezeWindow, ...]
    instant_window_s: float
    undo_max_s: float
    when_stable_is_gone: WhenStableIsGone
    stable_gone_s: float
    second_look: SecondLook
    control: Control
    document: dict[str, Any]
    digest: str

    def facing(self, *, has_stable: bool) -> Policy:
        """The plan as it can be followed: a release with no stable beside it takes all traffic in one step.

        With a stable, no step and not even the bake leaves it less than the holdback, so that both arms stay comparable.
        Without one there is nothing to copy requests from, and nothing to compare with.
        """
        if not has_stable:
            whole = replace(self.steps[-1], weight_bp=FULL_BP)
            return replace(self, steps=(whole,), bake=replace(self.bake, weight_bp=FULL_BP), shadow=None)
        most = FULL_BP - self.holdback_bp
        capped = tuple(replace(step, weight_bp=min(step.weight_bp, most)) for step in self.steps)
        return replace(self, steps=capped, bake=replace(self.bake, weight_bp=most))

    def at_look(self, look: int) -> Policy:
        """The plan in the rollout's look of this number, counted from 1: later looks have a larger chance to convict.

        Guards with an alpha of their own keep their part of the whole.
        """
        if look <= 1:
            return self
        more = self.second_look.alpha_second / self.alpha_roll_back
        guards = tuple(one if one.alpha is None else replace(one, alpha=one.alpha * more) for one in self.guards)
        return replace(self, alpha_roll_back=self.second_look.alpha_second, guards=guards)

    def stage_name(self, step_index: int) -> str:
        """`start` for the first step, then `step 2`, …, and `bake` after the last: as approvals name them."""
        if step_index >= len(self.steps):
            return "bake"
        return "start" if step_index <= 0 else f"step {step_index + 1}"

    @property
    def stages(self) -> int:
        """How often evidence starts afresh: shadowing, the steps, the bake."""
        return len(self.steps) + 1 + (self.shadow is not None)

    def alpha_of_one_test(self, guard: Guard) -> float:
        """The share of the false-rollback chance of a test of the guard, so that the sum over a rollout holds.

        Each guard has two tests (against stable, against the objective) in every stage. Guards without an alpha of their
        own share what those with one leave of `alpha_roll_back`. Source: union bound.
        """
        return self._shares[guard.name] / (2 * self.stages)

    @cached_property
    def _shares(self) -> dict[str, float]:
        own = {guard.name: guard.alpha for guard in self.guards if guard.alpha is not None}
        others = [guard.name for guard in self.guards if guard.alpha is None]
        left = self.alpha_roll_back - sum(own.values())
        return own | {name: left / len(others) for name in others}

    def bar_worse_of(self, guard: Guard) -> float:
        """The log evidence that proves a breach of this guard."""
        return -math.log(self.alpha_of_one_test(guard))

    @property
    def bar_worse(self) -> float:
        """The same for a guard that has an equal share: what pages and decisions show as the rollout's bar."""
        return self.bar_worse_of(next((one for one in self.guards if one.alpha is None), self.guards[0]))

    @property
    def bar_fine(self) -> float:
        """The log evidence that proves a guard good enough."""
        return -math.log(self.alpha_promote)
