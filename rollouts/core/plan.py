"""What a rollout follows: steps of weight, guards, tolerances and deadlines, read from JSON with every default filled in.

Units: weights in percent (JSON) or basis points (`weight_bp`), times in seconds, shares in [0, 1]. docs/rollouts.md lists all fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

from accounts.core.errors import Invalid
from ledger.core.canonical import digest_of
from registry.core.fields import BAD, Many, Number, Problem, Record, Text, Whole, may, need, repeated
from rollouts.core.evidence import Tolerance
from serving.core.buckets import EDGES_US

FULL_BP = 10_000


class OnUndecided(StrEnum):
    HOLD = "hold"
    ROLL_BACK = "roll_back"


@dataclass(frozen=True)
class Step:
    """One stage of weight. It ends by proof, not before `min_s` and `min_samples`; past `deadline_s` it is undecided."""

    weight_bp: int
    min_s: float
    min_samples: int  # attempts of the candidate
    deadline_s: float


@dataclass(frozen=True)
class Guard:
    """An indicator watched against stable at the same time, and against the model's objective.

    The reference is what stable does now or, without a stable, `max_frac`. Proven over `roll_back_over` of it: roll back.
    Proven within `promote_within` of it: good enough to go on.
    """

    indicator: str  # errors, or slow
    max_frac: float
    roll_back_over: Tolerance
    promote_within: Tolerance
    threshold_us: int = 0  # of slow

    @property
    def name(self) -> str:
        """`errors`, or `slow_250ms`."""
        return self.indicator if self.indicator == "errors" else f"slow_{self.threshold_us / 1000:g}ms"

    @property
    def words(self) -> str:
        """`errors`, or `slow requests (over 250 ms)`."""
        return "errors" if self.indicator == "errors" else f"slow requests (over {self.threshold_us / 1000:g} ms)"


@dataclass(frozen=True)
class Policy:
    """A policy with every default in it. `document` is its canonical JSON, `digest` that JSON's name."""

    steps: tuple[Step, ...]
    bake: Step
    guards: tuple[Guard, ...]
    holdback_bp: int
    alpha_roll_back: float
    alpha_promote: float
    on_undecided: OnUndecided
    all_failing_attempts: int
    no_data_s: float
    stale_s: float
    ack_deadline_s: float
    prepare_deadline_s: float
    dispersion_window_s: float
    document: dict[str, Any]
    digest: str

    def facing(self, *, has_stable: bool) -> Policy:
        """The plan as it can be followed: a release with no stable beside it takes all traffic in one step.

        With a stable, no step and not even the bake leaves it less than the holdback, so that both arms stay comparable.
        """
        if not has_stable:
            return replace(
                self, steps=(replace(self.steps[-1], weight_bp=FULL_BP),), bake=replace(self.bake, weight_bp=FULL_BP)
            )
        most = FULL_BP - self.holdback_bp
        capped = tuple(replace(step, weight_bp=min(step.weight_bp, most)) for step in self.steps)
        return replace(self, steps=capped, bake=replace(self.bake, weight_bp=most))

    @property
    def alpha_of_one_test(self) -> float:
        """The share of the false-rollback chance that each single test may use up, so that the sum over a rollout holds.

        Each guard has two tests (against stable, against the objective) in every step and in the bake. Source: union bound.
        """
        return self.alpha_roll_back / (2 * len(self.guards) * (len(self.steps) + 1))

    @property
    def bar_worse(self) -> float:
        """The log evidence that proves a breach."""
        return -math.log(self.alpha_of_one_test)

    @property
    def bar_fine(self) -> float:
        """The log evidence that proves a guard good enough."""
        return -math.log(self.alpha_promote)


_SECONDS = Number(0, 30 * 86_400, unit="seconds")
_DEADLINE = Number(0, 30 * 86_400, above=True, unit="seconds")
_SHARE = Number(0, 1)
_ALPHA = Number(0, 0.5, above=True)
_STAGE = {"min_s": need(_SECONDS), "min_samples": need(Whole(1, 10**9, unit="attempts")), "deadline_s": need(_DEADLINE)}
_STEP = Record({"weight_pct": need(Number(0, 100, above=True, unit="percent")), **_STAGE})
_BAKE = Record(_STAGE)
_TOLERANCE = Record({"ratio": need(Number(1, 100)), "plus_frac": need(_SHARE)})
_GUARD = Record(
    {
        "indicator": need(Text(one_of=("errors", "slow"), says="an indicator")),
        "threshold_ms": may(Number(0, 10_000, above=True, unit="milliseconds"), None),
        "max_frac": may(_SHARE, None),
        "roll_back_over": may(_TOLERANCE, None),
        "promote_within": may(_TOLERANCE, None),
    }
)
_POLICY = Record(
    {
        "preset": may(Text(one_of=("careful", "standard", "fast", "demo"), says="a preset"), "standard"),
        "steps": may(Many(_STEP, least=1, most=50)),
        "bake": may(_BAKE),
        "guards": may(Many(_GUARD, least=1, most=20), None),
        "holdback_pct": may(Number(0, 50, unit="percent")),
        "alpha_roll_back": may(_ALPHA),
        "alpha_promote": may(_ALPHA),
        "on_undecided": may(Text(one_of=("hold", "roll_back"), says="what to do")),
        "all_failing_attempts": may(Whole(5, 10_000, unit="attempts")),
        "no_data_s": may(_DEADLINE),
        "stale_s": may(_DEADLINE),
        "ack_deadline_s": may(_DEADLINE),
        "prepare_deadline_s": may(_DEADLINE),
        "dispersion_window_s": may(_DEADLINE),
    },
    elsewhere={
        "bake_s": "Write bake: {min_s: …, min_samples: …, deadline_s: …}.",
        "alpha": "Write alpha_roll_back or alpha_promote.",
        "weights": "Write steps: [{weight_pct: …, min_s: …, min_samples: …, deadline_s: …}].",
    },
)


def _stages(weights: tuple[float, ...], min_s: float, min_samples: int, deadline_s: float) -> list[dict[str, Any]]:
    return [
        {"weight_pct": weight, "min_s": min_s, "min_samples": min_samples, "deadline_s": deadline_s}
        for weight in weights
    ]


_COMMON: dict[str, Any] = {
    "holdback_pct": 5,
    "alpha_roll_back": 0.01,
    "alpha_promote": 0.05,
    "on_undecided": "hold",
    "all_failing_attempts": 10,
    "no_data_s": 30,
    "stale_s": 15,
    "ack_deadline_s": 10,
    "prepare_deadline_s": 1800,
    "dispersion_window_s": 5,
}
PRESETS: dict[str, dict[str, Any]] = {
    "careful": {
        **_COMMON,
        "steps": _stages((1, 5, 10, 25, 50), 300, 500, 7200),
        "bake": {"min_s": 3600, "min_samples": 1000, "deadline_s": 14_400},
    },
    "standard": {
        **_COMMON,
        "steps": _stages((5, 25, 50), 180, 300, 3600),
        "bake": {"min_s": 1800, "min_samples": 500, "deadline_s": 7200},
    },
    "fast": {
        **_COMMON,
        "steps": _stages((10, 50), 60, 100, 900),
        "bake": {"min_s": 300, "min_samples": 200, "deadline_s": 1800},
        "all_failing_attempts": 5,
    },
    "demo": {
        **_COMMON,
        "steps": _stages((25, 50), 5, 40, 90),
        "bake": {"min_s": 6, "min_samples": 40, "deadline_s": 90},
        "all_failing_attempts": 5,
        "no_data_s": 10,
        "stale_s": 5,
        "prepare_deadline_s": 180,
        "dispersion_window_s": 2,
    },
}
_STRICT = {"errors": {"ratio": 1.2, "plus_frac": 0.001}, "slow": {"ratio": 1.5, "plus_frac": 0.005}}
_ROOMY = {"ratio": 1.5, "plus_frac": 0.02}
#: How much worse than the reference is too much, and how close to it is proof enough, unless the guard says.
_ROLL_BACK_OVER = {"careful": _STRICT, "standard": _STRICT, "fast": _STRICT, "demo": {"errors": _ROOMY, "slow": _ROOMY}}
_PROMOTE_WITHIN = {
    "careful": {"ratio": 1.5, "plus_frac": 0.005},
    "standard": {"ratio": 2, "plus_frac": 0.005},
    "fast": {"ratio": 2, "plus_frac": 0.01},
    "demo": {"ratio": 2, "plus_frac": 0.1},
}
DEFAULT_MAX_FRAC = 0.01


def parse_policy(document: Mapping[str, Any], objectives: Mapping[str, Any] | None = None) -> Policy:
    """The policy that a JSON object states on top of its preset (`standard` if it names none).

    Where `guards` is absent, errors are guarded, and slow requests if the model's `objectives` name a threshold.

    Raises:
        Invalid: `rollout_policy_invalid`, with facts["errors"] = [{field, message, fix}] naming every mistake at once.
    """
    problems: list[Problem] = []
    read = _POLICY.read(document, "", problems)
    if not isinstance(read, dict) or "preset" not in read:
        raise _invalid(problems)
    whole = {**deepcopy(PRESETS[read["preset"]]), **read}
    guards = _guards(whole, objectives or {}, problems)
    problems += _contradictions(whole)
    if problems:
        raise _invalid(problems)
    whole["guards"] = guards
    return _built(whole)


def _invalid(problems: list[Problem]) -> Invalid:
    first = problems[0]
    return Invalid(
        "rollout_policy_invalid",
        f"The rollout policy cannot be read: {first.field or 'policy'}: {first.message} {first.fix}",
        errors=[problem.as_json() for problem in problems],
    )


def _guards(whole: Mapping[str, Any], objectives: Mapping[str, Any], problems: list[Problem]) -> list[dict[str, Any]]:
    slow = objectives.get("slow") or {}
    given = whole.get("guards")
    if given is None:
        given = [{"indicator": "errors"}, *([{"indicator": "slow"}] if slow else [])]
    out = []
    for i, guard in enumerate(given):
        if not isinstance(guard, dict) or guard.get("indicator", BAD) is BAD:
            continue
        out.append(_guard(guard, whole["preset"], objectives, f"guards[{i}]", problems))
    for name in repeated((guard["indicator"], guard["threshold_ms"]) for guard in out):
        problems.append(
            Problem("guards", f"{name[0]} is guarded twice.", "Name every indicator, with its threshold, once.")
        )
    return out


def _guard(
    guard: dict[str, Any], preset: str, objectives: Mapping[str, Any], at: str, problems: list[Problem]
) -> dict[str, Any]:
    indicator = guard["indicator"]
    slow = objectives.get("slow") or {}
    threshold = guard.get("threshold_ms")
    max_frac = guard.get("max_frac")
    if indicator == "slow":
        threshold = slow.get("threshold_ms") if threshold is None else threshold
        max_frac = slow.get("max_frac", DEFAULT_MAX_FRAC) if max_frac is None else max_frac
        if threshold is None:
            problems.append(
                Problem(
                    f"{at}.threshold_ms",
                    "slow has no threshold.",
                    "Write threshold_ms, or give the model objectives.slow.",
                )
            )
        elif round(threshold * 1000) not in EDGES_US:
            edges = ", ".join(f"{edge / 1000:g}" for edge in EDGES_US)
            problems.append(
                Problem(
                    f"{at}.threshold_ms",
                    f"{threshold:g} ms is not an edge that gateways count at.",
                    f"Choose one of {edges}.",
                )
            )
    else:
        if threshold is not None:
            problems.append(
                Problem(f"{at}.threshold_ms", "errors have no threshold.", "Remove it, or write indicator: slow.")
            )
        max_frac = objectives.get("errors_max_frac", DEFAULT_MAX_FRAC) if max_frac is None else max_frac
    return {
        "indicator": indicator,
        "threshold_ms": threshold,
        "max_frac": max_frac,
        "roll_back_over": guard.get("roll_back_over") or dict(_ROLL_BACK_OVER[preset][indicator]),
        "promote_within": guard.get("promote_within") or dict(_PROMOTE_WITHIN[preset]),
    }


def _contradictions(whole: Mapping[str, Any]) -> list[Problem]:
    problems = []
    weights = [step.get("weight_pct", 0) for step in whole["steps"]]
    if any(later <= earlier for earlier, later in pairwise(weights)):
        problems.append(
            Problem(
                "steps",
                "the weights do not grow from step to step.",
                "List the steps from the smallest weight to the largest.",
            )
        )
    stages = [*((f"steps[{i}]", step) for i, step in enumerate(whole["steps"])), ("bake", whole["bake"])]
    problems += [
        Problem(f"{at}.deadline_s", "the deadline comes before the minimum time is over.", "Make it longer than min_s.")
        for at, stage in stages
        if stage.get("deadline_s", 1) <= stage.get("min_s", 0)
    ]
    return problems


def _built(whole: dict[str, Any]) -> Policy:
    def step(stage: Mapping[str, Any], weight_pct: float) -> Step:
        return Step(round(weight_pct * 100), stage["min_s"], stage["min_samples"], stage["deadline_s"])

    plain = (
        "alpha_roll_back",
        "alpha_promote",
        "all_failing_attempts",
        "no_data_s",
        "stale_s",
        "ack_deadline_s",
        "prepare_deadline_s",
        "dispersion_window_s",
    )
    return Policy(
        steps=tuple(step(stage, stage["weight_pct"]) for stage in whole["steps"]),
        bake=step(whole["bake"], 100 - whole["holdback_pct"]),
        guards=tuple(
            Guard(
                guard["indicator"],
                guard["max_frac"],
                Tolerance(**guard["roll_back_over"]),
                Tolerance(**guard["promote_within"]),
                round((guard["threshold_ms"] or 0) * 1000),
            )
            for guard in whole["guards"]
        ),
        holdback_bp=round(whole["holdback_pct"] * 100),
        on_undecided=OnUndecided(whole["on_undecided"]),
        document=whole,
        digest=digest_of(whole),
        **{name: whole[name] for name in plain},
    )
