"""Named reads of golden sets, gate runs and reports."""

from __future__ import annotations

from validators.queries.gate_runs import (
    closest_report,
    gate_run_end,
    gate_run_progress,
    gate_runs,
    golden_items,
    golden_lines,
    golden_sets_of,
    is_authentic,
    is_needed_by_another,
    latest_report,
    newest_gate_runs,
    reports_of,
    stable_route,
    stored_predictions,
    visible_gate_run,
    visible_report,
)

__all__ = [
    "closest_report",
    "gate_run_end",
    "gate_run_progress",
    "gate_runs",
    "golden_items",
    "golden_lines",
    "golden_sets_of",
    "is_authentic",
    "is_needed_by_another",
    "latest_report",
    "newest_gate_runs",
    "reports_of",
    "stable_route",
    "stored_predictions",
    "visible_gate_run",
    "visible_report",
]
