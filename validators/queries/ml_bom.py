"""The ML-BOM of a release: its manifest, and what its newest report measured."""

from __future__ import annotations

import json
from typing import Any

from registry.actions.attestations import VERSION
from registry.core.mlbom import make_bom
from registry.models import Release
from registry.queries import manifest_of
from validators.core.attested import predicate_facts
from validators.queries.gate_runs import is_authentic, latest_report


def bom_of(release: Release) -> dict[str, Any]:
    """Raises StateChanged for a draft. A report that was tampered with is left out."""
    manifest = manifest_of(release)
    assert release.digest is not None and release.sealed_at is not None  # it is no draft
    report = latest_report(release)
    is_told = report is not None and report.manifest_digest == release.digest and is_authentic(report)
    return make_bom(
        manifest,
        digest=release.digest,
        release_name=release.name,
        sealed_at=release.sealed_at.isoformat(),
        version=VERSION,
        gates=predicate_facts(json.loads(report.body))["results"] if report and is_told else (),
    )
