"""The whole diff of two releases: the registry's part, and what their gates measured."""

from __future__ import annotations

import json
from typing import Any

from registry.models import Release
from registry.queries.release_diff import compare_releases
from validators.core.gate_diff import compare_reports
from validators.models import Report
from validators.queries.gate_runs import latest_reports


def whole_diff(old: Release, new: Release) -> dict[str, Any]:
    """What the second release changes against the first, as `DiffOut` shows it. Raises StateChanged for a draft."""
    newest = latest_reports([old, new])
    reports = newest.get(old.pk), newest.get(new.pk)
    bodies = [json.loads(report.body) if report else None for report in reports]
    return {
        "old": _side(old, reports[0]),
        "new": _side(new, reports[1]),
        **compare_releases(old, new).as_json(),
        **compare_reports(bodies[0], bodies[1]),
    }


def _side(release: Release, report: Report | None) -> dict[str, Any]:
    return {
        "model": release.model.slug,
        "name": release.name,
        "digest": release.digest,
        "report": report.digest if report else None,
        "verdict": report.verdict if report else None,
    }
