"""Effect of a policy at a model's own traffic: duration of each stage, and time to find a fault.

Everything follows from expected counts: evidence grows by what an average second adds to it. So the figures are about
medians, not promises; `benchmarks.calibration` measures their spread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from accounts.core.quantities import weight_text
from rollouts.core.evidence import Side, Sums, Window, fixed_sums, increments, mixed
from rollouts.core.policy import FULL_BP, ONE_LOOK, Guard, OnUndecided, Policy, Source, Step

FAILURES = (0.01, 0.05, 0.20)
#: Beyond this many seconds nobody waits: it counts as never.
FOREVER_S = 30 * 86_400.0
#: From the count to the weight 0: half a tick until it is read, and the gateways' acknowledgement.
REACTION_S = 1.0
#: The plan that is offered where traffic is thin, and the share of the time that it must save to be worth the traffic.
SOONER_BP, SOONER_HOLDBACK_BP, SOONER_FRAC = 5000, 2000, 0.8
NO_SHARES: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class StagePreview:
    """One stage. `expected_s` is None if it is unknown. `is_late`: it will not end by proof before its deadline, and then it waits
    for proof, or the policy takes the candidate back (None)."""

    name: str
    weight_bp: int
    min_s: float
    min_samples: int
    deadline_s: float
    approvals: int
    samples_s: float | None  # until `min_samples` attempts are seen
    proof_s: float | None  # until a healthy candidate is proven
    expected_s: float | None
    is_late: bool = False


@dataclass(frozen=True)
class Detection:
    """A candidate of which `fail_frac` of the attempts fail, at one weight: how long until its traffic is taken away, at what cost.

    `convicted_s`: until it is rolled back for good, if it fails alike in every look.
    """

    fail_frac: float
    stage: str
    weight_bp: int
    seconds: float | None  # None: not within FOREVER_S
    bad_requests: float | None
    convicted_s: float | None


@dataclass(frozen=True)
class SoonerPlan:
    """One step and a bake that prove a healthy release in less time at few requests, with more traffic on the candidate at once."""

    weight_bp: int
    holdback_bp: int
    total_s: float


@dataclass(frozen=True)
class PolicyPreview:
    stages: tuple[StagePreview, ...]
    detect: tuple[Detection, ...]
    total_s: float | None
    is_thin: bool  # some stage will not see its samples, or its proof, before its deadline
    sooner: SoonerPlan | None = None  # offered if traffic is thin

    @property
    def in_hours(self) -> str:
        """The time that a healthy release takes, and the plan that takes less, as sentences."""
        takes = "Nothing proves a healthy release in this time"
        if self.total_s is not None:
            takes = f"A healthy release takes about {self.total_s / 3600:.1f} h"
        if self.sooner is None:
            return f"{takes}; make these weights or deadlines larger, or ask for fewer samples."
        weight, kept = weight_text(self.sooner.weight_bp), weight_text(self.sooner.holdback_bp)
        hours = self.sooner.total_s / 3600
        return f"{takes}. One step of {weight} with a holdback of {kept} takes about {hours:.1f} h."

    def to_json(self) -> dict[str, Any]:
        return {
            "stages": [one.__dict__ for one in self.stages],
            "detect": [one.__dict__ for one in self.detect],
            "total_s": self.total_s,
            "is_thin": self.is_thin,
            "sooner": self.sooner and self.sooner.__dict__,
        }


def preview(
    policy: Policy,
    *,
    rate_per_s: float | None,
    error_frac: float = 0.0,
    slow_frac: Mapping[str, float] = NO_SHARES,
    has_stable: bool,
) -> PolicyPreview:
    """`rate_per_s`: requests a second of the whole model, None if unknown; `error_frac`: stable's share of errors.

    `slow_frac`: stable's share of slow attempts by counter (`slow_50ms`). A stage waits for proof at every point of a
    guard, and takes several times longer at one where a fifth of a healthy release's attempts are slow.
    """
    plan = policy.facing(has_stable=has_stable)
    stages = [_stage(plan, name, step, rate_per_s, error_frac, slow_frac, has_stable) for name, step in _named(plan)]
    if plan.shadow is not None:
        stages.insert(0, _shadow(plan, rate_per_s))
    detect = tuple(
        one
        for name, step in (_named(plan) if rate_per_s else ())
        for one in _detections(plan, name, step, rate_per_s or 0.0, error_frac, has_stable)
    )
    times = [one.expected_s for one in stages]
    total = None if None in times else sum(one for one in times if one is not None)
    is_thin = bool(rate_per_s) and any(one.is_late or one.expected_s is None for one in stages)
    sooner = None
    if is_thin and has_stable and rate_per_s:
        sooner = _sooner(plan, rate_per_s, error_frac, slow_frac, total)
    return PolicyPreview(tuple(stages), detect, total, is_thin, sooner)


def _sooner(
    plan: Policy, rate: float, base: float, slow: Mapping[str, float], total_s: float | None
) -> SoonerPlan | None:
    """The plan of one step, if it takes clearly less time."""
    one_step = replace(plan, steps=(replace(plan.steps[-1], weight_bp=SOONER_BP),), holdback_bp=SOONER_HOLDBACK_BP)
    facing = one_step.facing(has_stable=True)
    times = [_stage(facing, name, step, rate, base, slow, True).expected_s for name, step in _named(facing)]
    if any(one is None for one in times):
        return None
    whole = sum(one or 0.0 for one in times)
    is_sooner = total_s is None or whole <= SOONER_FRAC * total_s
    return SoonerPlan(SOONER_BP, SOONER_HOLDBACK_BP, whole) if is_sooner else None


def _named(plan: Policy) -> list[tuple[str, Step]]:
    return [*((plan.stage_name(i), step) for i, step in enumerate(plan.steps)), ("bake", plan.bake)]


def _stage(
    plan: Policy,
    name: str,
    step: Step,
    rate: float | None,
    base: float,
    slow: Mapping[str, float],
    has_stable: bool,
) -> StagePreview:
    samples_s = proof_s = expected = None
    is_late = False
    if rate:
        nc, nb = _loads(step.weight_bp, rate)
        samples_s = step.min_samples / nc if nc else None
        each = [
            _fine_sums(guard, nc, nb, share, has_stable)
            for guard in plan.guards
            if guard.source is Source.GATEWAY and guard.needs_proof and not guard.is_dry_run
            for share in _shares(guard, base, slow if has_stable else NO_SHARES)
        ]
        longest_s = max((_until(sums, plan.bar_fine) for sums in each), default=0.0)
        proof_s = longest_s if math.isfinite(longest_s) else None
        longest = None if samples_s is None or proof_s is None else max(step.min_s, samples_s, proof_s)
        expected, is_late = _waited(plan, longest, step.deadline_s)
    wanted = plan.approvals.get(name, 0)
    return StagePreview(
        name,
        step.weight_bp,
        step.min_s,
        step.min_samples,
        step.deadline_s,
        wanted,
        samples_s,
        proof_s,
        expected,
        is_late,
    )


def _waited(plan: Policy, longest_s: float | None, deadline_s: float) -> tuple[float | None, bool]:
    """How long the stage lasts, and whether that is past its deadline."""
    if longest_s is None:
        return None, True
    is_late = longest_s >= deadline_s
    return (None if is_late and plan.on_undecided is OnUndecided.ROLL_BACK else longest_s), is_late


def _shadow(plan: Policy, rate: float | None) -> StagePreview:
    shadow = plan.shadow
    assert shadow is not None
    samples_s = shadow.min_samples / (rate * shadow.sample_bp / FULL_BP) if rate else None
    longest = max(shadow.min_s, samples_s) if samples_s is not None else None
    expected, is_late = _waited(plan, longest, shadow.deadline_s) if rate else (None, False)
    return StagePreview(
        "shadow", 0, shadow.min_s, shadow.min_samples, shadow.deadline_s, 0, samples_s, samples_s, expected, is_late
    )


def _detections(plan: Policy, name: str, step: Step, rate: float, base: float, has_stable: bool) -> list[Detection]:
    """By the errors guard, or by the first one where errors are not guarded."""
    guard = next((one for one in plan.guards if one.kind.is_failure), plan.guards[0])
    nc, nb = _loads(step.weight_bp, rate)
    limit, bar = guard.roll_back_over.of(guard.max_frac), plan.bar_worse_of(guard)
    more = plan.second_look.looks - 1 if has_stable else 0
    again = [one.seconds for one in _first_stage_again(plan, rate, base)] if more else [0.0] * len(FAILURES)
    found = []
    for fail, later in zip(FAILURES, again, strict=True):
        bad = max(fail, base)
        ways = [fixed_sums(nc * bad, nc, limit, Side.WORSE)]
        if has_stable and nb:
            ways.append(increments(Window(nc * bad, nc, nb * base, nb), guard.roll_back_over, Side.WORSE))
        # No evidence before the first bad attempt.
        after = max(min(_until(sums, bar) for sums in ways), 1.0 / (nc * bad)) + REACTION_S
        if math.isinf(after):
            found.append(Detection(fail, name, step.weight_bp, None, None, None))
            continue
        convicted = None if later is None else round(after + more * (plan.second_look.after_s + later), 1)
        found.append(Detection(fail, name, step.weight_bp, round(after, 1), round(after * nc * bad, 1), convicted))
    return found


def _first_stage_again(plan: Policy, rate: float, base: float) -> list[Detection]:
    """The same in a later look, which begins at the first weight and convicts."""
    later = replace(plan.at_look(2), second_look=ONE_LOOK)
    return _detections(later, plan.stage_name(0), plan.steps[0], rate, base, has_stable=True)


def _loads(weight_bp: int, rate: float) -> tuple[float, float]:
    return rate * weight_bp / FULL_BP, rate * (FULL_BP - weight_bp) / FULL_BP


def _shares(guard: Guard, base: float, slow: Mapping[str, float]) -> list[float]:
    """A healthy candidate's share of bad attempts at each point of the guard that is known, and at its own in any case.

    Without counts, slow attempts are assumed to be half of the objective's allowance.
    """
    if guard.kind.is_failure:
        return [base]
    if guard.kind.is_callers:  # callers' mistakes, which both arms get alike
        return [0.0]
    inner = [slow[name] for name in guard.points if name in slow and name != guard.name]
    return [slow.get(guard.name, guard.max_frac / 2), *inner]


def _fine_sums(guard: Guard, nc: float, nb: float, share: float, has_stable: bool) -> Sums:
    """A healthy candidate's evidence in a second, if both arms have this share of bad attempts."""
    if has_stable and nb:
        return increments(Window(nc * share, nc, nb * share, nb), guard.promote_within, Side.FINE)
    return fixed_sums(nc * share, nc, guard.promote_within.of(guard.max_frac), Side.FINE)


def _until(sums: Sums, bar: float) -> float:
    """Seconds until evidence that grows by `sums` a second reaches the bar; infinite if not within FOREVER_S."""

    def is_reached(seconds: float) -> bool:
        return mixed([seconds * one for one in sums]) >= bar

    if not is_reached(FOREVER_S):
        return math.inf
    low, high = 0.0, FOREVER_S
    while high - low > max(0.05, low * 0.01):
        middle = (low + high) / 2
        low, high = (low, middle) if is_reached(middle) else (middle, high)
    return high
