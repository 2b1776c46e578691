"""What the demo asks of a machine: a third of what it measured, steps that can be proven at that, and a plain word where it cannot."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from rollouts.core.policy import parse_policy
from rollouts.core.preview import preview
from sluicegate.cli import exits
from sluicegate.demo import story, traffic
from sluicegate.demo.capacity import (
    GRAPH_LOOKS,
    LEAST_CAPACITY_PER_S,
    LEAST_PER_S,
    MOST_PER_S,
    SLOWISH_FRAC,
    Capacity,
    TooSmall,
    check_graph,
    plan_for,
)

OBJECTIVES = {"errors_max_frac": 0.001, "slow": {"threshold_ms": 250, "max_frac": 0.01}}


@pytest.mark.parametrize(("per_s", "users_per_s"), [(200, 22), (66, 22), (30, 10), (12, 4)])
def test_users_ask_a_third_of_what_was_measured_and_never_over_22(per_s: float, users_per_s: float) -> None:
    capacity = Capacity(per_s, at_once=2, seconds=6)
    capacity.check()
    assert capacity.users_per_s == users_per_s
    assert capacity.to_json() == {"capacity_per_s": per_s, "at_once": 2, "seconds": 6, "users_per_s": users_per_s}


def test_a_machine_that_serves_too_little_is_told_with_what_was_measured() -> None:
    with pytest.raises(
        TooSmall, match=r"it serves 11\.9 requests a second of the users' mix, and 12 are needed"
    ) as told:
        Capacity(11.9, at_once=2, seconds=6).check()
    assert told.value.exit_code == exits.INFRASTRUCTURE
    assert "End what else runs here" in told.value.next_step


def test_one_disturbed_look_at_the_graph_is_not_believed(tmp_path: Path) -> None:
    looks = [LEAST_CAPACITY_PER_S - 1, LEAST_CAPACITY_PER_S + 1]
    assert check_graph(tmp_path, look=lambda _: looks.pop(0)) == LEAST_CAPACITY_PER_S + 1
    seen: list[Path] = []

    def look(release: Path) -> float:
        seen.append(release)
        return 3.0

    with pytest.raises(TooSmall, match=r"the model alone, without any server, answers 3\.0 requests a second"):
        check_graph(tmp_path, look=look)
    assert len(seen) == GRAPH_LOOKS


@pytest.mark.parametrize("per_s", [LEAST_PER_S, 6, 10, 15, MOST_PER_S])
def test_every_stage_can_be_proven_at_any_rate_that_is_tried(per_s: float) -> None:
    policy = parse_policy(plan_for(per_s, OBJECTIVES), OBJECTIVES)
    slow = {"slow_50ms": SLOWISH_FRAC, "slow_100ms": SLOWISH_FRAC}
    found = preview(policy, rate_per_s=per_s, slow_frac=slow, has_stable=True)
    assert not found.is_thin and found.total_s is not None
    assert found.total_s < 160
    assert all(stage.expected_s and 2 * stage.expected_s < stage.deadline_s for stage in found.stages)
    preset = parse_policy({"preset": "demo"}, OBJECTIVES)
    assert (policy.guards, policy.alpha_roll_back, policy.alpha_promote) == (
        preset.guards,
        preset.alpha_roll_back,
        preset.alpha_promote,
    )
    assert [(s.weight_bp, s.min_samples) for s in policy.steps] == [(s.weight_bp, s.min_samples) for s in preset.steps]


def test_stable_keeps_more_only_where_the_bake_would_take_long() -> None:
    assert plan_for(MOST_PER_S, OBJECTIVES)["holdback_pct"] == 5
    assert plan_for(LEAST_PER_S, OBJECTIVES)["holdback_pct"] == 20


class User:
    def __init__(self, works: bool) -> None:
        self.works, self.under_way, self.most = works, 0, 0

    async def ask(self, text: str) -> tuple[list[float], str]:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        if not self.works:
            raise traffic.Refused("HTTP 503")
        return [0.25, 0.75], "r1"


def test_a_measurement_counts_answers_to_users_who_wait_and_logs_them_all() -> None:
    users: dict[str, Any] = {"http": User(True), "grpc": User(False)}
    log = io.StringIO()
    per_s = asyncio.run(traffic.measure(users, ["A sentence."], seconds=0.3, seed=1, log=log))
    records = [json.loads(line) for line in log.getvalue().splitlines()]
    answered = [record for record in records if record["ok"]]
    assert {record["protocol"] for record in answered} == {"http"}
    assert {record["protocol"] for record in records} == {"http", "grpc"}
    assert len(answered) / 0.6 < per_s <= len(answered) / 0.3
    assert users["http"].most == users["grpc"].most == 1


def tale() -> story.Tale:
    return story.Tale(Mock(), story.Teller(as_json=True), Mock(is_there=False))


def test_users_come_at_the_measured_rate_and_later_rollouts_are_planned_for_it() -> None:
    told = tale()
    told.objectives = OBJECTIVES
    told.crowd.measure.return_value = Capacity(30, at_once=2, seconds=6)
    story._let_in(told)
    told.crowd.come.assert_called_once_with(10)
    author = Mock(**{"get.return_value": {"version": 7}})
    story._plan(told, author, told.capacity.users_per_s if told.capacity else 0)
    author.patch.assert_called_once_with("/models/sentiment", {"rollout_policy": plan_for(10, OBJECTIVES)}, version=7)


def test_no_users_come_to_a_machine_that_is_too_small() -> None:
    told = tale()
    told.crowd.measure.return_value = Capacity(5, at_once=2, seconds=6)
    with pytest.raises(TooSmall):
        story._let_in(told)
    told.crowd.come.assert_not_called()
    assert told.capacity is not None  # the report tells what was measured


def test_too_small_a_machine_ends_the_demo_with_the_code_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = tale()
    monkeypatch.setattr(story, "Client", MagicMock())
    monkeypatch.setattr(story, "assemble", Mock())
    monkeypatch.setattr(story, "_play", Mock(side_effect=TooSmall("it serves 2.0")))
    monkeypatch.setattr(story, "_envoy_version", lambda _: "")
    told.crowd.log = tmp_path / "none"
    written = story._perform(told)
    assert written["is_too_small"] and "it serves 2.0" in written["problem"]
    assert story._conclude(written, told.teller) == exits.INFRASTRUCTURE
