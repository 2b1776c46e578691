"""Indicators as values: all facts that other modules need. Each guard names an indicator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rollouts.core.counter_deltas import ERRORS, REFUSED, Counts
from serving.ports import FIRST_TEXT, LARGEST_GAP

Objectives = Mapping[str, Any]


class Source(StrEnum):
    """Origin of a guard's counts."""

    GATEWAY = "gateway"
    PROBER = "prober"
    PROMETHEUS = "prometheus"
    PROBES = "probes"  # golden items that the prober asks of stable, outside rollouts


def _of_its_name(objectives: Objectives, name: str) -> Mapping[str, Any]:
    stated = objectives.get(name)
    return stated if isinstance(stated, Mapping) else {}


@dataclass(frozen=True, kw_only=True)
class Indicator:
    """A pair of counters (bad, attempts) that a guard can be stated on.

    Attributes:
        words: noun for its bad attempts, in the plural; empty: the guard's label.
        ratio, plus_frac: `roll_back_over` of presets for production.
        objective: (the model's objectives, name) → the stated `max_frac` and `threshold_ms`.
        max_frac: the objective if the model states none.
        by_default: (objectives, policy) → whether a policy without guards has one on it.
        attempts: (counts, counter of the guard) → the attempts that the bad ones are counted among.
        has_thresholds: it measures time, and counts attempts above thresholds.
        measure: the measure of streams (`ArmCounters.streams`) that has thresholds; empty: the time of whole attempts.
        is_failure: it counts attempts that failed. Gateways retry these on stable and count them by replica.
        is_callers: any caller can cause it, so no stage waits for its proof. Only the releases are compared.
        spends: whether a bad attempt spends the budget of bad requests.
        bins_to_page: bins of bad attempts alone that raise a page of the watch, at the least.
        holds_undo: whether the undo window waits for its proof.
        beyond_mix: share of bad attempts beyond stable's that another mix of requests may explain.
    """

    name: str
    source: Source
    words: str
    ratio: float
    plus_frac: float
    objective: Callable[[Objectives, str], Mapping[str, Any]] = _of_its_name
    max_frac: float = 0.01
    by_default: Callable[[Objectives, Mapping[str, Any]], bool] = lambda objectives, policy: False
    attempts: Callable[[Counts, str], int] = lambda counts, name: counts.attempts
    has_thresholds: bool = False
    measure: str = ""
    is_failure: bool = False
    is_callers: bool = False
    spends: bool = False
    beyond_mix: float = 0.05
    bins_to_page: int = 12
    holds_undo: bool = True


def _of_streams(name: str, words: str, measure: str) -> Indicator:
    return Indicator(
        name=name,
        source=Source.GATEWAY,
        words=words,
        ratio=1.5,
        plus_frac=0.005,
        by_default=lambda objectives, policy: bool(objectives.get(name)),
        attempts=lambda counts, point: counts.measured_at(point, measure),
        has_thresholds=True,
        measure=measure,
        beyond_mix=0.5,
    )


INDICATORS: Final[dict[str, Indicator]] = {
    one.name: one
    for one in (
        Indicator(
            name=ERRORS,
            source=Source.GATEWAY,
            words="errors",
            ratio=1.2,
            plus_frac=0.001,
            objective=lambda objectives, name: {"max_frac": objectives.get("errors_max_frac")},
            by_default=lambda objectives, policy: True,
            is_failure=True,
            spends=True,
        ),
        Indicator(
            name="slow",
            source=Source.GATEWAY,
            words="slow requests",
            ratio=1.5,
            plus_frac=0.005,
            by_default=lambda objectives, policy: bool(objectives.get("slow")),
            attempts=Counts.timed_at,
            has_thresholds=True,
            beyond_mix=0.5,  # large requests may well be slow, but they do not fail
        ),
        _of_streams("first_token", "streams with a late first token", FIRST_TEXT),
        _of_streams("stalled", "stalled streams", LARGEST_GAP),
        Indicator(
            name=REFUSED,
            source=Source.GATEWAY,
            words="refused requests",
            ratio=1.0,  # a ratio would hide good requests behind many bad ones
            plus_frac=0.01,
            max_frac=1.0,
            by_default=lambda objectives, policy: isinstance(policy["alpha_roll_back"], int | float),
            attempts=lambda counts, name: counts.attempts + counts.bad.get(REFUSED, 0),
            is_callers=True,
        ),
        Indicator(
            name="wrong",
            source=Source.PROBER,
            words="wrong answers",
            ratio=1.5,
            plus_frac=0.005,
            by_default=lambda objectives, policy: bool(objectives.get("wrong") or policy["shadow"].get("sample_pct")),
            spends=True,
        ),
        Indicator(name="external", source=Source.PROMETHEUS, words="", ratio=1.2, plus_frac=0.005),
    )
}
#: The indicator that callers can cause.
CALLERS: Final = next(one for one in INDICATORS.values() if one.is_callers)
#: No guard: the watch alone judges it, for models with a golden set. Its proof takes hours, so no undo window waits for it.
PROBE: Final = Indicator(
    name="probe",
    source=Source.PROBES,
    words="wrong answers to golden probes",
    ratio=1.5,
    plus_frac=0.005,
    objective=lambda objectives, name: _of_its_name(objectives, "wrong"),
    bins_to_page=7,
    holds_undo=False,
)
#: Guards' indicators, and those that the watch alone judges.
ALL: Final = {**INDICATORS, PROBE.name: PROBE}
