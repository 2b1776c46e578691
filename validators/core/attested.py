"""What a report's gates measured, as it is attested: every number with its unit, threshold, n and interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from registry.core.attestations import GateResult, Measured
from validators.core.gate_diff import metrics_of

#: The confidence of the intervals of the load gate's shares, which no policy sets.
_USUAL = 0.95


def predicate_facts(body: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `registry.core.attestations.gate_evidence` from a report's body, except for its own digest."""
    return {
        "results": [_result(gate, body["policy"]) for gate in body["gates"]],
        "verdict": body["verdict"],
        "reason": body["reason"],
        "manifest_digest": body["manifest_digest"],
        "policy_digest": body["policy_digest"],
        "golden_set": body.get("golden_set"),
        "runtime_image": body["runtime"]["image"],
        "hardware": body.get("hardware") or {},
        "versions": body.get("versions") or {},
        "sealed_at": body["sealed_at"],
    }


def _result(gate: Mapping[str, Any], policy: Mapping[str, Any]) -> GateResult:
    return GateResult(
        gate["gate"],
        gate["verdict"],
        gate["reason"],
        gate.get("started_at"),
        gate.get("ended_at"),
        tuple(_measured(gate["gate"], gate.get("evidence") or {}, policy)),
        gate.get("measured") or {},
        gate.get("reused_from"),
    )


def _measured(gate: str, evidence: Mapping[str, Any], policy: Mapping[str, Any]) -> Iterator[Measured]:
    demanded = _thresholds(gate, policy.get(gate) or {})
    confidence = (policy.get(gate) or {}).get("confidence", _USUAL) if gate == "golden" else _USUAL
    for metric in metrics_of(gate, evidence):
        yield Measured(
            metric.name,
            metric.unit,
            "higher" if metric.higher_is_better else "lower",
            metric.value,
            demanded.get(metric.name),
            metric.n,
            metric.low,
            metric.high,
            None if metric.low is None else confidence,
        )
    agreement = evidence.get("agreement")
    if gate == "golden" and agreement and agreement.get("value") is not None:
        name = f"agreement with {evidence.get('baseline')}"
        interval = agreement["n"], agreement["low"], agreement["high"], confidence
        yield Measured(name, "frac", "higher", agreement["value"], demanded.get("agreement"), *interval)
    if gate == "golden" and evidence.get("paired"):
        paired = evidence["paired"]
        yield Measured("accuracy drop", "frac", "lower", paired["drop"], demanded.get("accuracy drop"), paired["n"])


def _thresholds(gate: str, policy: Mapping[str, Any]) -> dict[str, float | None]:
    """What the policy demands of each number; None where it demands nothing."""
    if gate == "golden":
        return {
            "accuracy": policy.get("min_accuracy"),
            "agreement": policy.get("min_agreement"),
            "accuracy drop": policy.get("max_accuracy_drop"),
            "batch flips": policy.get("max_batch_flips"),
        }
    if gate == "load":
        quantile, slo_ms = policy.get("slo_quantile"), policy.get("slo_ms")
        asked = {f"latency p{quantile * 100:g}": slo_ms} if quantile and slo_ms else {}
        over = round(1 - quantile, 9) if quantile and slo_ms else None
        return {"errors": policy.get("max_error_frac"), "over the objective": over, **asked}
    if gate == "cold_start":
        return {"total": policy.get("max_s")}
    if gate == "resources":
        return {"cpu time per request": policy.get("max_cpu_ms")}
    return {}
