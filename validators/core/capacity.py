"""The capacity gate's judgement: the rate that was proven, and the points on the way there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from validators.core.capacity_search import Ended, Purpose, Run, SearchPlan, proves, refutes
from validators.core.load import LoadSummary
from validators.core.verdict import Judgement, Verdict


@dataclass(frozen=True)
class Measured:
    """One rate that was asked: what the search counts, all that was measured, and the server's own stages, where it tells them."""

    run: Run
    summary: LoadSummary
    stages: Mapping[str, float] | None = None


def plan_of(policy: Mapping[str, Any], load: Mapping[str, Any]) -> SearchPlan:
    """The search that a policy's capacity section asks for, under the objective of its load section."""
    return SearchPlan(
        quantile=float(load["slo_quantile"]),
        confidence=float(policy["confidence"]),
        first_per_s=min(float(policy["first_per_s"]), float(policy["most_per_s"])),
        most_per_s=float(policy["most_per_s"]),
        budget_s=float(policy["budget_s"]),
    )


def hardware_name(facts: Mapping[str, Any], *, on_gpu: bool = True) -> str:
    """The hardware that a release computes on, as an envelope names it: the node's GPU if it has one and the release uses it, else
    its processor. Empty if the node reports neither."""
    named = [*((facts.get("gpus") or ()) if on_gpu else ()), facts.get("cpu_model")]
    return next((str(one) for one in named if one), "")


def same_hardware(one: str, other: str) -> bool:
    """GPU Feature Discovery writes dashes where the driver writes spaces."""
    return bool(other) and one.casefold().replace(" ", "-") == other.casefold().replace(" ", "-")


def judge_capacity(
    ended: Ended,
    measured: Sequence[Measured],
    plan: SearchPlan,
    *,
    slo_ms: float,
    hardware: str,
    max_lag_ms: float = math.inf,
) -> Judgement:
    """The verdict of a search that ended, with all that it `measured`, in order: passed if a rate is proven, else undecided.

    A run whose generator sent more than `max_lag_ms` late refutes nothing. The rate that the envelope declares is judged by
    `validators.core.envelope`.
    """
    claim = ended.claim
    rate = _rounded_down(claim.step.rate_per_s) if claim else None
    evidence = {
        "capacity_per_s": rate,
        "hardware": hardware,
        "slo_ms": slo_ms,
        "slo_quantile": plan.quantile,
        "confidence": plan.confidence,
        "budget_s": plan.budget_s,
        "seconds": sum(len(one.run.over_per_window) for one in measured),
        "points": [_point(one, plan, max_lag_ms) for one in measured],
    }
    if not claim or not rate:
        return Judgement(Verdict.UNDECIDED, f"No capacity was proven: {ended.why}.", evidence)
    held = f"Holds {rate:g} requests/s: of {claim.requests} in {len(claim.over_per_window)} s, {claim.over} were over {slo_ms:g} ms"
    allowed = f"at most {plan.allowed:.2%} may be; proven at confidence {plan.confidence:g}"
    return Judgement(Verdict.PASSED, f"{held}, and {allowed}.", evidence)


def _rounded_down(rate_per_s: float) -> float:
    """To a tenth of a request per second, or to three digits where that is coarser than a hundredth of it."""
    step = 10.0 if rate_per_s >= 10 else 1000.0
    return int(rate_per_s * step) / step


def _point(measured: Measured, plan: SearchPlan, max_lag_ms: float) -> dict[str, Any]:
    """One measured rate, as the evidence tells it. `found`: proven, refuted or open."""
    run, summary = measured.run, measured.summary
    is_refuted = summary.lag_p99_ms <= max_lag_ms and refutes(run, plan)
    is_proof = run.step.purpose is Purpose.CONFIRM and proves(run, plan)
    return {
        "rate_per_s": round(run.step.rate_per_s, 3),
        "purpose": run.step.purpose.value,
        "seconds": len(run.over_per_window),
        "requests": run.requests,
        "over": run.over,
        "errors": summary.errors,
        "achieved_per_s": summary.achieved_per_s,
        "goodput_per_s": summary.goodput_per_s,
        "latency_ms": {name: summary.latency_ms[name] for name in ("p50", "p95", "p99") if name in summary.latency_ms},
        "latency_low_ms": dict(summary.latency_low_ms),
        "in_flight": round(summary.in_flight, 3),
        "lag_p99_ms": summary.lag_p99_ms,
        "dispersion": round(run.dispersion, 3),
        "stages": dict(measured.stages) if measured.stages else None,
        "found": "proven" if is_proof else "refuted" if is_refuted else "open",
    }
