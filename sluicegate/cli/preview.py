"""A rollout's preview in words: stages, times to detection, and warnings with their codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from accounts.core.quantities import duration_text, share_text, weight_text
from sluicegate.cli.output import short

_MARKS = {"refused": "✗", "warning": "!", "note": "·"}


def lines(found: dict[str, Any]) -> list[str]:
    """A preview as the API gives it, for people."""
    over = f"over {found['stable']}" if found["stable"] else "as the first release"
    told = [
        f"{found['model']}/{found['candidate']} {over} in {found['environment']}, "
        f"policy {found['policy'].get('preset', '')} {short(found['policy_digest'])}",
        traffic_line(found["traffic"]),
        "",
        *_stages(found),
        *_detection(found),
        *_watch(found),
        *_undo_window(found),
    ]
    told += [f"{_MARKS[one['level']]} {one['level']} {one['code']}: {one['message']}" for one in found["warnings"]]
    end = "Nothing was created." if found["can_start"] else "Nothing was created, and a start would be refused."
    return [*told, end]


def traffic_line(traffic: dict[str, Any]) -> str:
    """`Traffic: 12.5 requests/s, 0.1 % errors on stable (gateways).`"""
    if traffic["rate_per_s"] is None:
        return "Traffic: unknown."
    errors = "" if traffic["error_frac"] is None else f", {share_text(traffic['error_frac'])} errors on stable"
    return f"Traffic: {traffic['rate_per_s']:g} requests/s{errors} ({traffic['source']})."


def _stages(found: dict[str, Any]) -> list[str]:
    rows = [
        (
            stage["name"],
            weight_text(stage["weight_bp"]),
            duration_text(stage["min_s"]),
            str(stage["min_samples"]),
            duration_text(stage["deadline_s"]),
            duration_text(stage["expected_s"]),
            str(stage["approvals"] or ""),
        )
        for stage in found["stages"]
    ]
    told = columns(("stage", "weight", "at least", "samples", "deadline", "expected", "approvals"), rows)
    if found["total_s"] is not None:
        told.append(f"In all about {duration_text(found['total_s'])} for a healthy release.")
    return [*told, ""]


def _detection(found: dict[str, Any]) -> list[str]:
    if not found["detect"]:
        return []
    stages = list(dict.fromkeys((one["stage"], one["weight_bp"]) for one in found["detect"]))
    rows: dict[float, list[str]] = {}
    for one in found["detect"]:
        cell = "never" if one["seconds"] is None else f"{duration_text(one['seconds'])}, {one['bad_requests']:.0f} bad"
        if one["convicted_s"] != one["seconds"]:
            later = "never" if one["convicted_s"] is None else f"after {duration_text(one['convicted_s'])}"
            cell += f", rolled back {later}"
        rows.setdefault(one["fail_frac"], [f"{share_text(one['fail_frac'])} fail"]).append(cell)
    heads = ("found within", *(f"{name} at {weight_text(weight)}" for name, weight in stages))
    return [*columns(heads, rows.values()), ""]


def _watch(found: dict[str, Any]) -> list[str]:
    """Delays of the watch after the promotion; empty if the rate of requests is unknown."""

    def cell(seconds: float | None) -> str:
        if seconds is None:
            return "never"
        return duration_text(seconds if seconds < 120 else 60 * round(seconds / 60))

    names = ("page_all_s", "page_ten_s", "ticket_two_s", "met_s")
    rows = [[one["words"], *(cell(one[name]) for name in names)] for one in found["watch"]]
    if found["traffic"]["rate_per_s"] is None or not rows:
        return []
    heads = ("after the promotion", "page: all fail", "page: ten times", "ticket: twice", "proven to be met")
    return [*columns(heads, rows), ""]


def _undo_window(found: dict[str, Any]) -> list[str]:
    """Time in which `sluicegate rollback` undoes the promotion at once; empty without a release to go back to."""
    if not found["stable"]:
        return []
    if not found["undo_window_s"]:
        return [
            f"There is no undo window: {found['stable']} is drained after the promotion (instant_window_s is 0).",
            "",
        ]
    stays = (
        f"The undo window, back to {found['stable']}, is {duration_text(found['undo_window_s'])} after the promotion"
    )
    return [f"{stays}: sluicegate rollback {found['model']}", ""]


def columns(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Cells in columns, without lines between them."""
    table = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
