"""A release's envelope beside what its newest report measured, for its page, the API and the command line."""

from __future__ import annotations

import json
from typing import Any

from registry.models import Release
from registry.queries import manifest_of
from registry.queries.gpu_memory import gpu_memory_estimate
from validators.core.envelope import table
from validators.core.expiry import uses_gpu
from validators.queries.gate_runs import latest_report

#: Said beside the declared cores. No platform that there is reserves them.
_CORES = (
    "Cores are not reserved: other servers on the node may use them, so that a busy node can be slower than measured."
)


def envelope_of(release: Release) -> dict[str, Any]:
    """{"report": its digest or None, "rows", "notes", "estimate"}: one row for each value, also if it is not declared or not measured.

    `estimate`: of the GPU memory before any run; None if the release uses no GPU.
    """
    estimate = gpu_memory_estimate(release)
    manifest, report = manifest_of(release), latest_report(release)
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
