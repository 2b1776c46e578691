"""The plan of a collection: every fate, and that its reason says why."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from registry.core.garbage_collection import BlobFacts, Fate, Kind, ReleaseFacts, Rules, StrayFacts, make_plan
from registry.core.lifecycle import ReleaseState

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
RULES = Rules(drafts_for=timedelta(days=7), undelete_for=timedelta(days=14))
OLD, FRESH = NOW - timedelta(days=30), NOW - timedelta(minutes=5)
RELEASES = [
    ReleaseFacts("s", "m/r1", ReleaseState.SEALED, None),
    ReleaseFacts("r", "m/r2", ReleaseState.RETIRED, OLD),
    ReleaseFacts("h", "m/r3", ReleaseState.RETIRED, OLD, ("alias m/champion",)),
    ReleaseFacts("d", "m/draft 1", ReleaseState.DRAFT, FRESH),
    ReleaseFacts("a", "m/draft 2", ReleaseState.DRAFT, OLD),
]


def fate_of(**facts: Any) -> tuple[Fate, str]:
    blob = BlobFacts(**{"sha256": "b", "size_bytes": 7, "stored_at": OLD, **facts})
    (item,) = make_plan(RELEASES, [blob], [], rules=RULES, now=NOW).of(Kind.BLOB, *Fate)
    return item.fate, item.reason


@pytest.mark.parametrize(
    ("facts", "fate", "said"),
    [
        ({"releases": ("s", "r")}, Fate.KEEP, "needed by m/r1 (sealed)"),
        ({"releases": ("h",)}, Fate.KEEP, "needed by m/r3 (retired)"),
        ({"releases": ("d",)}, Fate.KEEP, "needed by m/draft 1 (draft)"),
        ({"others": ("golden set 3",)}, Fate.KEEP, "needed by golden set 3"),
        ({"others": ("g 1", "g 2", "g 3", "g 4")}, Fate.KEEP, "and 1 more"),
        ({"stored_at": FRESH}, Fate.KEEP, "somebody may be about to name it"),
        ({"releases": ("s",), "due_at": OLD}, Fate.RESTORE, "its mark goes"),
        ({"releases": ("r",)}, Fate.MARK, "only in m/r2, which is retired; it can be had back for 14 days"),
        ({"releases": ("r", "a")}, Fate.MARK, "only in m/r2, m/draft 2, which are retired or abandoned"),
        ({}, Fate.MARK, "nothing names it"),
        ({"due_at": NOW + timedelta(days=1)}, Fate.WAIT, "can be had back until 2026-03-02 12:00 UTC"),
        ({"due_at": NOW}, Fate.DELETE, "it could be had back until"),
        ({"releases": ("a",)}, Fate.DELETE, "only in m/draft 2, which is abandoned"),
        ({"releases": ("r",), "is_collected": True}, Fate.GONE, "deleted by an earlier run"),
        ({"releases": ("s", "r"), "is_collected": True}, Fate.KEEP, "needed by m/r1 (sealed); but its bytes are gone"),
    ],
)
def test_the_fate_of_a_blob(facts: dict[str, Any], fate: Fate, said: str) -> None:
    found, reason = fate_of(**facts)
    assert found is fate and said in reason


def test_the_fate_of_a_release() -> None:
    items = make_plan(RELEASES, [], [], rules=RULES, now=NOW).of(Kind.RELEASE, *Fate)
    assert [(item.fate, item.reason) for item in items] == [
        (Fate.KEEP, "sealed; it goes only when somebody retires it"),
        (
            Fate.RETIRED,
            "retired on 2026-01-30 12:00 UTC; its bytes may go, its manifest, digest, signatures and reports stay",
        ),
        (Fate.KEEP, "retired; in use: alias m/champion"),
        (Fate.KEEP, "a draft; discarded on 2026-03-08 11:55 UTC unless it is sealed"),
        (Fate.DELETE, "a draft that nobody sealed in 7 days"),
    ]


def test_stray_bytes_are_explained() -> None:
    strays = [
        StrayFacts("k1", 1),
        StrayFacts("k2", 2, use="of upload 9, which is verifying"),
        StrayFacts("k3", 3, due_at=OLD),
        StrayFacts("k4", 4, use="of upload 10", due_at=OLD),
    ]
    items = make_plan([], [], strays, rules=RULES, now=NOW).of(Kind.BYTES, *Fate)
    assert [item.fate for item in items] == [Fate.MARK, Fate.KEEP, Fate.DELETE, Fate.RESTORE]
    assert "lost a race or was cut off" in items[0].reason and items[1].reason == "of upload 9, which is verifying"


def test_the_totals_add_up() -> None:
    blobs = [BlobFacts(str(i), 10, OLD, ("s",) if i % 2 else ()) for i in range(10)]
    totals = make_plan(RELEASES, blobs, [StrayFacts("k", 5)], rules=RULES, now=NOW).totals()
    assert totals["keep"] == {"releases": 3, "blobs": 5, "bytes": 50}
    assert totals["mark"] == {"releases": 0, "blobs": 6, "bytes": 55}
    assert totals["delete"]["releases"] == 1 and totals["retired"]["releases"] == 1 and totals["gone"]["releases"] == 0


def test_the_plan_is_linear() -> None:
    """100,000 blobs in 20,000 releases; the bound is generous, and a quadratic plan would take hours."""
    releases = [ReleaseFacts(str(i), f"m/r{i}", ReleaseState.SEALED, None) for i in range(20_000)]
    blobs = [BlobFacts(str(i), 1, OLD, (str(i % 20_000),)) for i in range(100_000)]
    began = time.process_time()
    plan = make_plan(releases, blobs, [], rules=RULES, now=NOW)
    assert time.process_time() - began < 30 and len(plan.items) == 120_000
