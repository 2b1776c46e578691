"""What a golden set holds and can prove, before it is used."""

from __future__ import annotations

from typing import Any

from validators.core.golden_preview import ROWS, changes, preview
from validators.core.golden_set import GoldenItem
from validators.core.policy import parse_policy


def section(**golden: Any) -> dict[str, Any]:
    return parse_policy({"golden": golden}).of("golden")


def items(count: int, *, label: int = 1, text: str = "x", part: str = "all", start: int = 0) -> list[GoldenItem]:
    return [GoldenItem(f"i{i}", {"text": text}, label, part) for i in range(start, start + count)]


def test_the_first_rows_and_the_labels_are_told() -> None:
    found = preview(items(200), section())
    assert len(found.rows) == ROWS and found.labels == ({"label": "1", "items": 200},) and found.changes is None


def test_what_changed_is_told_by_id() -> None:
    before = items(10)
    now = [
        *items(2, label=0),
        *items(2, text="y", start=2),
        *items(2, part="new", start=4),
        *items(3, start=6),
        *items(4, start=50),
    ]
    found = changes(now, before)
    assert (found.added, found.removed, found.relabelled, found.reworded, found.moved, found.same) == (4, 1, 2, 2, 2, 3)
    assert preview(now, section(confidence=0.9), before=before).changes == found
