"""The capacity gate's judgement: the rate that was proven, the points on the way there, and whether the envelope declares more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from validators.core.capacity_search import Ended, Purpose, Run, SearchPlan, proves, refutes
from validators.core.load import LoadSummary
from validators.core.verdict import Judgement, Verdict


@dataclass(frozen=True)
class Declared:
    """What an envelope declares for the hardware that was measured: requests per second, and at which of its entries."""

    per_s: float
    entry: int


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


def declared_for(envelope: Mapping[str, Any], hardware: str) -> Declared | None:
    """The greatest rate of requests that the envelope declares for this hardware; None where it declares none for it."""
    entries = enumerate(envelope.get("performance") or ())
    found = [
        Declared(float(entry["throughput"]["value"]), at)
        for at, entry in entries
        if (entry.get("throughput") or {}).get("unit") == "requests_per_s"
        and same_hardware(entry["hardware"], hardware)
    ]
    return max(found, key=lambda one: one.per_s, default=None)


def hardware_name(facts: Mapping[str, Any]) -> str:
    """What a node computes on, as an envelope names it: its GPU, else its processor; empty where it does not tell."""
    named = [*(facts.get("gpus") or ()), facts.get("cpu_model")]
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
    declared: Declared | None,
) -> Judgement:
    """The verdict of a search that ended, with all that it `measured`, in order.

    Passed: a rate is proven, and the envelope declares no more. Failed: a run refutes the objective at the declared rate or
    below it. Undecided: nothing was proven, or less than is declared and more than is refuted.
    """
    claim = ended.claim
    rate = _rounded_down(claim.step.rate_per_s) if claim else None
    evidence = {
        "capacity_per_s": rate,
        "declared_per_s": declared.per_s if declared else None,
        "declared_entry": declared.entry if declared else None,
        "hardware": hardware,
        "slo_ms": slo_ms,
        "slo_quantile": plan.quantile,
        "confidence": plan.confidence,
        "budget_s": plan.budget_s,
        "seconds": sum(len(one.run.over_per_window) for one in measured),
        "points": [_point(one, plan) for one in measured],
    }
    over = f"over {slo_ms:g} ms, and at most {plan.allowed:.2%} may be"
    proven = ""
    if claim and rate:
        proven = (
            f"Holds {rate:g} requests/s: of {claim.requests} in {len(claim.over_per_window)} s, {claim.over} were {over}; "
            f"proven at confidence {plan.confidence:g}. "
        )
    asks = f"Its envelope declares {declared.per_s:g} requests/s" if declared else ""
    runs = [one.run for one in measured]
    refuted = [run for run in runs if declared and run.step.rate_per_s <= declared.per_s and refutes(run, plan)]
    if rate and (declared is None or declared.per_s <= rate):
        told = asks or f"Its envelope declares no rate for {hardware or 'this hardware'}"
        return Judgement(Verdict.PASSED, f"{proven}{told}.", evidence)
    if refuted:
        worst = min(refuted, key=lambda run: run.step.rate_per_s)
        missed = f"at {worst.step.rate_per_s:.4g}/s {worst.over} of {worst.requests} were {over}"
        return Judgement(Verdict.FAILED, f"{proven}{asks}, and {missed}.", evidence)
    if rate:
        return Judgement(Verdict.UNDECIDED, f"{proven}{asks}, which is neither proven nor refuted.", evidence)
    return Judgement(Verdict.UNDECIDED, f"No capacity was proven: {ended.why}.", evidence)


def _rounded_down(rate_per_s: float) -> float:
    """To a tenth of a request per second, or to three digits where that is coarser than a hundredth of it."""
    step = 10.0 if rate_per_s >= 10 else 1000.0
    return int(rate_per_s * step) / step


def _point(measured: Measured, plan: SearchPlan) -> dict[str, Any]:
    """One measured rate, as the evidence tells it. `found`: proven, refuted or open."""
    run, summary = measured.run, measured.summary
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
        "lag_p99_ms": summary.lag_p99_ms,
        "dispersion": round(run.dispersion, 3),
        "stages": dict(measured.stages) if measured.stages else None,
        "found": "proven" if is_proof else "refuted" if refutes(run, plan) else "open",
    }
