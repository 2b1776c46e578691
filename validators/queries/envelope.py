"""A release's envelope beside what its newest report measured, for its page, the API and the command line."""

from __future__ import annotations

import json
from typing import Any

from django.db.models import OuterRef, QuerySet

from registry.models import Release
from registry.queries import manifest_of
from registry.queries.gpu_memory import gpu_memory_estimate
from validators.core.envelope import table
from validators.core.expiry import uses_gpu
from validators.models import GateRun, Report
from validators.queries.gate_runs import reports_of

#: Said beside the declared cores. No platform that there is reserves them.
_CORES = (
    "Cores are not reserved: other servers on the node may use them, so that a busy node can be slower than measured."
)


def with_newest_report(runs: QuerySet[GateRun]) -> QuerySet[GateRun]:
    """The gate runs with the newest report of their release, for `newest_report_in`, in the same query."""
    newest = reports_of(OuterRef("release_id"))
    return runs.annotate(newest_digest=newest.values("digest")[:1], newest_body=newest.values("body")[:1])


def newest_report_in(run: GateRun | None) -> Report | None:
    """The digest and the body of that report; None if there is no gate run, or none has ended."""
    digest = getattr(run, "newest_digest", None)
    return Report(digest=digest, body=getattr(run, "newest_body", "")) if digest else None


def envelope_of(release: Release, report: Report | None) -> dict[str, Any]:
    """{"report": its digest or None, "rows", "notes", "estimate"}: one row for each value, also if it is not declared or not measured.

    `report`: the newest one, None before the first. `estimate`: of the GPU memory before any run; None if the release uses no GPU.
    """
    estimate = gpu_memory_estimate(release)
    manifest = manifest_of(release)
    body = json.loads(report.body) if report else {}
    rows = body.get("envelope")
    if rows is None:  # no report, or one from before the envelope was judged
        rows = table(manifest.get("envelope") or {}, body.get("gates") or (), uses_gpu=uses_gpu(manifest))
    has_cores = any(row["field"] == "host.cpu_cores_min" and row["declared"] is not None for row in rows)
    return {
        "report": report.digest if report else None,
        "rows": rows,
        "notes": [_CORES] if has_cores else [],
        "estimate": estimate.as_json() if estimate else None,
    }
