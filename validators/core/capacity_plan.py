"""How many replicas a forecast needs, and what they cost: from a rate that was measured on one of them, or not at all.

Premises: replicas are alike and share the load evenly, each on hardware as it was measured; a request that is sent again costs as
much as the first; and capacity adds up, which a shared disk, network or GPU would break.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from validators.core.evidence import result_with
from validators.core.gates import GATES

_PER_COST = 100_000


@dataclass(frozen=True)
class Forecast:
    """What is expected. Rates per second are of requests by users; shares are of 1, so a growth of .2 is a fifth more.

    `burst_factor` is the rate in a burst over that of its minute, at least 1. `retry_frac`: requests that are sent again, per request.
    `ramp_frac_per_min`: by how much of itself the load grows in a minute. `spare`: replicas that may be lost at the peak.
    `surge_frac`: replicas that come up beside the others in a rollout; 1 where stable stays whole until the undo window closes.
    """

    peak_per_s: float
    growth_frac: float = 0.0
    burst_factor: float = 1.0
    retry_frac: float = 0.0
    ramp_frac_per_min: float = 0.0
    spare: int = 1
    surge_frac: float = 1.0
    mean_per_s: float | None = None


@dataclass(frozen=True)
class Basis:
    """What is known of one replica, and from where. `gate`: capacity found the limit, load only that it holds this rate."""

    per_s: float
    gate: str
    hardware: str  # empty where the node did not tell
    slo_ms: float
    slo_quantile: float
    confidence: float
    report: str  # its digest
    cold_start_s: float | None = None

    @property
    def is_limit(self) -> bool:
        """Whether the gate searched for the limit, so that the replica holds no more."""
        return GATES[self.gate].searches


@dataclass(frozen=True)
class CapacityPlan:
    """None is unknown, and `unknown` says why. `load_per_s` is what replicas have to take at the peak, with all that adds to it."""

    load_per_s: float | None
    serving: int | None  # that the load takes
    replicas: int | None  # with those that may be lost
    in_rollout: int | None  # while another release comes up beside them
    used_frac: float | None  # of all, at the peak
    used_frac_after_loss: float | None  # of those that are left when `spare` are lost
    cost_per_hour: float | None
    cost_per_100k: float | None
    unknown: tuple[str, ...] = ()


def basis_of(report: Mapping[str, Any], digest: str, hardware: str) -> Basis | None:
    """What a report's body tells of one replica: its proven capacity, else the rate at which its load gate passed; else None."""
    cold, found = result_with(report, "total_s")["evidence"], result_with(report, "capacity_per_s")
    proven, per_s = found["evidence"], found["evidence"].get("capacity_per_s")
    load = result_with(report, "slo_test")
    if not per_s and load.get("verdict") == "passed" and load["evidence"]["slo_test"]:
        found, proven = load, {**load["evidence"], **load["evidence"]["slo_test"]}
        per_s = proven.get("achieved_per_s")
    if not per_s:
        return None
    return Basis(
        per_s=float(per_s),
        gate=found["gate"],
        hardware=str(proven.get("hardware") or hardware),
        slo_ms=float(proven["slo_ms"]),
        slo_quantile=float(proven["slo_quantile"]),
        confidence=float(proven["confidence"]),
        report=digest,
        cold_start_s=float(cold["total_s"]) if cold.get("total_s") is not None else None,
    )


def plan_for(forecast: Forecast, basis: Basis | None, prices_per_hour: Mapping[str, float]) -> CapacityPlan:
    """The replicas and their price. `prices_per_hour`: of one replica, by hardware, in any one currency."""
    if basis is None:
        return _nothing("No report of this release proves a rate: run its gates with capacity among them.")
    if forecast.ramp_frac_per_min and basis.cold_start_s is None:
        return _nothing("How much the load grows while a replica starts: no report says how long that takes.")
    grown = 1 + forecast.ramp_frac_per_min * (basis.cold_start_s or 0.0) / 60
    load = forecast.peak_per_s * (1 + forecast.growth_frac) * forecast.burst_factor * (1 + forecast.retry_frac) * grown
    serving = max(1, math.ceil(load / basis.per_s - 1e-9))
    replicas = serving + forecast.spare
    unknown = []
    price = prices_per_hour.get(basis.hardware)
    if price is None:
        unknown.append(f"The cost: no price was given for {basis.hardware or 'hardware that its node did not name'}.")
    if forecast.mean_per_s is None:
        unknown.append("The cost of a request: the mean rate was not given.")
    per_hour = None if price is None else replicas * price
    is_told = per_hour is not None and forecast.mean_per_s is not None
    return CapacityPlan(
        load_per_s=round(load, 3),
        serving=serving,
        replicas=replicas,
        in_rollout=replicas + math.ceil(replicas * forecast.surge_frac - 1e-9),
        used_frac=round(load / (replicas * basis.per_s), 4),
        used_frac_after_loss=round(load / (serving * basis.per_s), 4),
        cost_per_hour=None if per_hour is None else round(per_hour, 4),
        cost_per_100k=round(per_hour * _PER_COST / (forecast.mean_per_s * 3600), 6) if is_told else None,  # type: ignore[operator]
        unknown=tuple(unknown),
    )


def _nothing(why: str) -> CapacityPlan:
    return CapacityPlan(None, None, None, None, None, None, None, None, (why,))
