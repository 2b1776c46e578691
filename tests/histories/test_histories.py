"""Recorded rollouts, replayed through today's decisions: what ended well must still end well, and the bad must be stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.policy_schema import parse_policy
from rollouts.core.replay import Walk, walk

HISTORIES = sorted(Path(__file__).parent.glob("*.jsonl"))


def replayed(path: Path) -> tuple[str, list[Walk]]:
    head, *rows = [json.loads(line) for line in path.read_text().splitlines()]

    def feed(tick: int, weight_bp: int) -> Arms | None:
        if tick > len(rows):
            return None
        candidate, stable = rows[tick - 1][:3], rows[tick - 1][3:]
        return Arms(*(Counts(n, n, {"errors": errors, "slow_250ms": slow}) for n, errors, slow in (candidate, stable)))

    return head["ends"], list(walk(parse_policy(head["policy"], head["objectives"]), feed))


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_recorded_rollout_ends_as_it_must(path: Path) -> None:
    ends, walked = replayed(path)
    assert walked[-1].decision.action == ends, walked[-1].decision.reason
    assert all(one.decision.reason for one in walked)


def test_there_are_histories() -> None:
    assert len(HISTORIES) >= 7


def test_an_incident_of_both_is_held_as_such() -> None:
    _, walked = replayed(Path(__file__).parent / "incident_of_both.jsonl")
    assert {one.decision.code.value for one in walked[-60:]} == {"both_arms_bad"}


def test_a_fault_in_the_bake_is_stopped_within_seconds() -> None:
    _, walked = replayed(Path(__file__).parent / "late_in_the_bake.jsonl")
    assert walked[-1].state == "baking"
    baked_for = sum(one.state == "baking" for one in walked)
    assert baked_for < 60
