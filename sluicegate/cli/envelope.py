"""The lines of `sluicegate release show` on the envelope: declared, measured, verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accounts.core.quantities import quantity_text

_SIGNS = {"passed": "✓", "failed": "✗", "unknown": "?"}


def lines(envelope: dict[str, Any]) -> Iterator[str]:
    """A line for each declared or measured value, and a line with the names of the others."""
    rows = envelope["rows"]
    yield (
        "envelope, as the newest report judged it:" if envelope["report"] else "envelope, which no gate run has judged:"
    )
    known = [row for row in rows if row["declared"] is not None or row["measured"] is not None]
    width = max((len(row["field"]) for row in known), default=0)
    for row in known:
        declared = (
            "not declared"
            if row["declared"] is None
            else f"declared {quantity_text(row['declared'], row['unit'])}{' ' * bool(row['declared_for'])}{row['declared_for']}"
        )
        measured = (
            "not measured"
            if row["measured"] is None
            else f"measured {quantity_text(row['measured'], row['unit'])}{' ' * bool(row['under'])}{row['under']} ({row['gate']})"
        )
        yield f"  {_SIGNS[row['verdict']]} {row['field']:<{width}}  {row['verdict']:<7}  {declared}, {measured}"
        if row["declared"] is not None and row["verdict"] != "passed":
            yield f"      {row['sentence']}"
    others = [row["field"] for row in rows if row not in known]
    if others:
        yield f"  ? unknown, neither declared nor measured: {', '.join(others)}"
    yield from (f"  {note}" for note in envelope["notes"])
    yield from (f"  {line}" for line in memory_lines(envelope["estimate"]))


def memory_lines(estimate: dict[str, Any] | None) -> list[str]:
    """The estimate of a release's GPU memory, a line for each part."""
    if estimate is None:
        return []
    without = ", without its unknown parts" if estimate["is_partial"] else ""
    parts = [f"  {one['name']} {_amount(one)}: {one['source']}" for one in estimate["parts"]]
    return [
        f"GPU memory, an estimate before the run: about {estimate['total_mib']} MiB on each device{without}",
        *parts,
    ]


def _amount(part: dict[str, Any]) -> str:
    return "unknown" if part["mib"] is None else f"{part['mib']} MiB{' and more' * part['is_partial']}"
