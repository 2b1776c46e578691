"""What a golden set holds and can prove, before it is used."""

from __future__ import annotations

from typing import Any

import pytest

from validators.core import compare
from validators.core.golden_preview import ROWS, changes, preview
from validators.core.golden_set import GoldenItem
from validators.core.policy import parse_policy


def section(**golden: Any) -> dict[str, Any]:
    return parse_policy({"golden": golden}).of("golden")


def items(count: int, *, label: int = 1, text: str = "x", part: str = "all", start: int = 0) -> list[GoldenItem]:
    return [GoldenItem(f"i{i}", {"text": text}, label, part) for i in range(start, start + count)]


def test_intervals_and_drops_are_those_of_the_gate() -> None:
    found = preview(items(200), section())
    assert dict(found.certain)[0.9] == compare.share_of(180, 200, confidence=0.95)
    drops = dict(found.drops)
    assert drops[0.05] == compare.certifiable_margin(compare.Paired(200, 180, 10, 10), confidence=0.95)
    assert drops[0.0] < drops[0.01] < drops[0.05] < 0.1
    assert len(found.rows) == ROWS and found.labels == (("1", 200),) and found.changes is None


@pytest.mark.parametrize("count", [1, 2, 7])
def test_few_items_prove_little(count: int) -> None:
    found = preview(items(count), section())
    assert all(share.low <= accuracy + 0.5 and share.high <= 1 for accuracy, share in found.certain)
    assert all(0 < drop <= 1 for _, drop in found.drops)


def test_more_items_prove_more() -> None:
    small, large = (preview(items(count), section()) for count in (50, 5000))
    assert all(a > b for (_, a), (_, b) in zip(small.drops, large.drops, strict=True))


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
