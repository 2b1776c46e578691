"""The body of a report: what a finished gate run found, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.utils import timezone

from registry.queries import manifest_of
from validators.core.envelope import table
from validators.core.expiry import uses_gpu
from validators.core.gates import REPLAYING
from validators.core.verdict import Verdict
from validators.models import GateResult, GateRun


def report_body(
    gate_run: GateRun, runs: Sequence[GateResult], verdict: Verdict, reason: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The body that is sealed. `facts` are those of `validators.queries.report_facts`."""
    release, baseline = gate_run.release, gate_run.baseline
    manifest = manifest_of(release)
    return {
        "schema": "sluicegate/report/v1",
        "model": release.model.slug,
        "release": release.name,
        "manifest_digest": release.digest,
        "policy": gate_run.policy,
        "policy_digest": gate_run.policy_digest,
        "baseline": {"release": baseline.name, "manifest_digest": baseline.digest} if baseline else None,
        "golden_set": next((gate_run.policy[gate]["set"] for gate in REPLAYING), None),
        "environment": gate_run.environment.slug,
        "gates": [
            {
                "gate": run.gate,
                "verdict": run.verdict,
                "reason": run.reason,
                "evidence": run.evidence,
                "measured": run.measured,
                "reused_from": run.reused_from.digest if run.reused_from else None,
                "started_at": _iso(run.started_at),
                "ended_at": _iso(run.ended_at),
            }
            for run in runs
        ],
        "envelope": table(
            manifest.get("envelope") or {},
            [{"gate": run.gate, "verdict": run.verdict, "evidence": run.evidence} for run in runs],
            uses_gpu=uses_gpu(manifest),
        ),
        "verdict": verdict,
        "reason": reason,
        "runtime": manifest["runtime"],
        "requested_by": gate_run.requested_by,
        "gate_run": gate_run.pk,
        "started_at": _iso(gate_run.started_at),
        "sealed_at": _iso(timezone.now()),
        **facts,
    }


def _iso(instant: Any) -> str | None:
    return instant.isoformat() if instant else None
