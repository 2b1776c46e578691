"""What the demo asks of a machine: a third of what it measured, steps that can be proven at that, and a plain word where it cannot."""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import grpc
import httpx
import pytest
import yaml

from rollouts.core.policy_schema import parse_policy, watching_refusals
from rollouts.core.presets import PRESETS, ROLL_BACK_OVER
from rollouts.core.preview import preview
from sluicegate.cli import exits
from sluicegate.cli.errors import CommandError
from sluicegate.demo import releases, story, traffic
from sluicegate.demo.capacity import (
    GRAPH_LOOKS,
    GRAPH_S,
    LEAST_CAPACITY_PER_S,
    LEAST_PER_S,
    MOST_PER_S,
    SHARE,
    Capacity,
    TooSmall,
    check_graph,
    gate_rate,
    plan_for,
)
from sluicegate.demo.corpus import read_sentences, write_one
from sluicegate.demo.releases import GOLDEN_FILE
from sluicegate.demo.traffic import Record
from sluicegate.demo.traffic_process import TrafficProcess
from sluicegate.stack import child
from validators.core.load import Attempt, arrivals, judge_load, summarise
from validators.core.policy import parse_policy as parse_gates
from validators.core.recovery import judge_recovery, surge
from validators.core.verdict import Verdict

pytestmark = pytest.mark.slow  # measures for as long as the demo does

OBJECTIVES: dict[str, Any] = {"errors_max_frac": 0.001, "slow": {"threshold_ms": 250, "max_frac": 0.01}}


@pytest.mark.parametrize(("per_s", "users_per_s"), [(200, 22), (66, 22), (30, 10), (18, 6)])
def test_users_ask_a_third_of_what_was_measured_and_never_over_22(per_s: float, users_per_s: float) -> None:
    capacity = Capacity(per_s, at_once=2, seconds=6)
    capacity.check()
    assert capacity.users_per_s == users_per_s
    assert capacity.to_json() == {"capacity_per_s": per_s, "at_once": 2, "seconds": 6, "users_per_s": users_per_s}


def test_a_machine_that_serves_too_little_is_told_with_what_was_measured() -> None:
    with pytest.raises(
        TooSmall, match=r"it serves 17\.9 requests a second of the users' mix, and 18 are needed"
    ) as told:
        Capacity(17.9, at_once=2, seconds=6).check()
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


@pytest.mark.parametrize("per_s", [LEAST_PER_S, 8, 10, 15, MOST_PER_S])
def test_every_stage_can_be_proven_at_any_rate_that_is_tried(per_s: float) -> None:
    policy = parse_policy(plan_for(per_s, OBJECTIVES), OBJECTIVES)
    found = preview(policy, rate_per_s=per_s, has_stable=True)
    assert not found.is_thin and found.total_s is not None
    assert found.total_s < 80
    assert all(stage.expected_s and 2 * stage.expected_s < stage.deadline_s for stage in found.stages)
    preset = parse_policy({"preset": "demo"}, OBJECTIVES)
    assert (policy.alpha_roll_back, policy.alpha_promote) == (preset.alpha_roll_back, preset.alpha_promote)
    assert watching_refusals(policy).guards == tuple(
        replace(one, thresholds_us=(one.threshold_us,)) if one.indicator == "slow" else one for one in preset.guards
    )
    assert [(s.weight_bp, s.min_samples) for s in policy.steps] == [(s.weight_bp, s.min_samples) for s in preset.steps]


def test_slow_requests_of_a_small_machine_are_counted_at_the_objective_alone() -> None:
    """Near two fifths of the objective, where the preset counts too, such a machine needs hundreds of samples."""
    near = {"slow_50ms": 0.2, "slow_100ms": 0.2}
    plan = plan_for(MOST_PER_S, OBJECTIVES)
    kept = {name: PRESETS["demo"][name] for name in ("steps", "bake", "deadline_s")}
    assert {name: plan[name] for name in kept} == kept
    mine, preset = (parse_policy(one, OBJECTIVES) for one in (plan, {"preset": "demo"}))
    took_s = [preview(one, rate_per_s=MOST_PER_S, slow_frac=near, has_stable=True).total_s for one in (mine, preset)]
    assert took_s[0] is not None and took_s[1] is not None and 2 * took_s[0] < took_s[1]


def test_stable_keeps_more_only_where_the_bake_would_take_long() -> None:
    assert plan_for(MOST_PER_S, OBJECTIVES)["holdback_pct"] == 5
    assert plan_for(LEAST_PER_S, OBJECTIVES)["holdback_pct"] == 20


#: What a text costs r1: milliseconds in all and for each token, and tokens for each word of the golden set; only their
#: proportions matter here. Source: about what `python -m benchmarks.batching --costs` prints for single texts (4.7 ms for 8 tokens,
#: 9.2 for 32, 16 for 64, 38 for 128), and the release's tokenizer.
COST_MS, TOKEN_MS, TOKENS_A_WORD, MOST_TOKENS = 2.0, 0.26, 1.45, 128


def cost_ms(text: str) -> float:
    return COST_MS + TOKEN_MS * min(MOST_TOKENS, round(TOKENS_A_WORD * len(text.split())))


def one_by_one(due_s: Iterable[float], took_s: Iterable[float]) -> list[Attempt]:
    """A server with one instance: whoever comes while it works waits for their turn."""
    free, attempts = 0.0, []
    for due, took in zip(due_s, took_s, strict=False):
        free = max(free, due) + took
        attempts.append(Attempt(due, due, free))
    return attempts


class Machine:
    """One that serves so many requests a second of the users' mix."""

    def __init__(self, per_s: float) -> None:
        self.per_s, self.sentences = per_s, read_sentences(GOLDEN_FILE)
        chance = random.Random(1)
        self.users_ms = [cost_ms(write_one(self.sentences, chance).text) for _ in range(2000)]
        self.s_per_ms = 1 / (per_s * sum(self.users_ms) / len(self.users_ms))

    def gate(self, seed: int) -> Verdict:
        """What r1's load gate says of it, by the gate's own rule."""
        model = yaml.safe_load(releases.MODEL_FILE.read_text(encoding="utf-8"))
        policy = parse_gates({"load": model["gate_policy"]["load"]}, model["objectives"]).of("load")
        self.chance = random.Random(seed)
        due = arrivals(policy["rate_per_s"], policy["max_duration_s"], seed=seed)
        found = judge_load(
            summarise(self.answers(due, policy), duration_s=policy["max_duration_s"], slo_ms=policy["slo_ms"]), policy
        )
        if found.verdict is not Verdict.PASSED:
            return found.verdict
        return judge_recovery(found, self.answers(surge(policy, seed=seed), policy), policy).verdict

    def answers(self, due: Any, policy: dict[str, Any]) -> list[Attempt]:
        """To sentences of the golden set, and to texts of the most tokens."""
        longest = round(1 / policy["longest_frac"])
        costs = [
            COST_MS + TOKEN_MS * MOST_TOKENS if at % longest == 0 else cost_ms(self.chance.choice(self.sentences))
            for at in range(len(due))
        ]
        self.chance.shuffle(costs)
        return one_by_one(due.tolist(), [self.s_per_ms * ms for ms in costs])

    def slow_frac(self) -> float:
        """The share of users over the objective while they ask a third of what it serves."""
        chance = random.Random(2)
        due = list(accumulate(chance.expovariate(self.per_s * SHARE) for _ in range(20_000)))
        attempts = one_by_one(due, (self.s_per_ms * chance.choice(self.users_ms) for _ in due))
        return sum(one.done_s - one.due_s > OBJECTIVES["slow"]["threshold_ms"] / 1e3 for one in attempts) / len(
            attempts
        )


def test_the_least_capacity_is_what_the_first_release_needs() -> None:
    tolerated = ROLL_BACK_OVER["demo"]["slow"]
    most = tolerated["ratio"] * OBJECTIVES["slow"]["max_frac"] + tolerated["plus_frac"]
    least = Machine(LEAST_CAPACITY_PER_S)
    verdicts = [least.gate(seed) for seed in range(40)]
    assert Verdict.FAILED not in verdicts
    assert verdicts.count(Verdict.PASSED) > 24, "gates that should pass run once more"
    assert least.slow_frac() < 0.75 * most
    too_small = Machine(LEAST_CAPACITY_PER_S * 2 / 3)
    assert sum(too_small.gate(seed) is Verdict.FAILED for seed in range(40)) > 20
    assert too_small.slow_frac() > 2 * most


class User:
    def __init__(self, fails: Exception | None = None) -> None:
        self.fails, self.asked, self.under_way, self.most = fails, 0, 0, 0

    async def ask(self, text: str) -> tuple[list[float], str]:
        self.asked += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        if self.fails:
            raise self.fails
        return [0.25, 0.75], "r1"


def measured(users: dict[str, Any]) -> tuple[traffic.Measured, list[Record]]:
    log = io.StringIO()
    found = asyncio.run(traffic.measure(users, ["A sentence."], seconds=0.3, seed=1, log=log))
    return found, [Record(**json.loads(line)) for line in log.getvalue().splitlines()]


def test_a_measurement_counts_answers_to_users_who_wait_and_logs_them_all() -> None:
    users = {"http": User(), "grpc": User()}
    found, records = measured(users)
    assert (found.answered, found.failed, found.error) == (len(records), 0, "")
    assert found.per_s == found.answered / found.seconds
    assert {record.protocol for record in records} == {"http", "grpc"}
    assert all(record.ok and record.is_measuring for record in records)
    assert users["http"].most == users["grpc"].most == 1


def test_failures_are_told_also_where_only_one_protocol_fails_and_are_no_storm() -> None:
    users = {"http": User(), "grpc": User(traffic.Refused("gRPC UNAVAILABLE: no route"))}
    found, records = measured(users)
    assert found.answered == sum(record.ok for record in records) > 0
    assert (found.failed, users["grpc"].asked) == (1, 1)  # whoever failed waits longer than this measurement lasts
    assert found.error == "over grpc: Refused: gRPC UNAVAILABLE: no route"


def test_who_is_shed_has_not_failed() -> None:
    found, records = measured({"http": User(), "grpc": User(traffic.Shed("gRPC RESOURCE_EXHAUSTED: full"))})
    assert (found.failed, found.error) == (0, "")
    assert [record.is_shed for record in records if not record.ok] == [True]


@pytest.mark.parametrize(("status", "kind"), [(429, traffic.Shed), (503, traffic.Refused)])
def test_a_full_gateway_is_told_from_a_broken_one_over_http(status: int, kind: type[Exception]) -> None:
    async def ask() -> None:
        user = traffic.HttpUser("http://gateway", "sentiment")
        await user.close()
        user.client = httpx.AsyncClient(
            base_url="http://gateway", transport=httpx.MockTransport(lambda _: httpx.Response(status, text="no"))
        )
        await user.ask("A sentence.")

    with pytest.raises(traffic.Refused, match=f"HTTP {status}: no") as told:
        asyncio.run(ask())
    assert type(told.value) is kind


@pytest.mark.parametrize(("code", "kind"), [("RESOURCE_EXHAUSTED", traffic.Shed), ("UNAVAILABLE", traffic.Refused)])
def test_a_full_gateway_is_told_from_a_broken_one_over_grpc(code: str, kind: type[Exception]) -> None:
    async def ask() -> None:
        user = traffic.GrpcUser("127.0.0.1:1", "sentiment")
        nothing = grpc.aio.Metadata()
        error = grpc.aio.AioRpcError(grpc.StatusCode[code], nothing, nothing, "no")
        user.stub = Mock(ModelInfer=AsyncMock(side_effect=error))
        try:
            await user.ask("A sentence.")
        finally:
            await user.close()

    with pytest.raises(traffic.Refused, match=f"gRPC {code}: no") as told:
        asyncio.run(ask())
    assert type(told.value) is kind


def crowd_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **found: Any) -> TrafficProcess:
    """Users whose measurement finds this."""
    said = json.dumps({"per_s": 0.0, "answered": 0, "failed": 0, "error": "", **found})
    monkeypatch.setattr(child, "run", lambda *_, **__: said)
    return TrafficProcess(Mock(state_dir=tmp_path, gateway_http="", gateway_grpc=""), "sentiment")


def test_a_gateway_that_fails_is_not_told_as_a_machine_that_is_too_small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = "over grpc: Refused: gRPC UNAVAILABLE: no route"
    crowd = crowd_that(monkeypatch, tmp_path, per_s=40.0, answered=240, failed=12, error=error)
    with pytest.raises(
        CommandError,
        match=re.escape(
            f"12 requests failed while the gateway's capacity was measured, and 240 were answered. The first failed {error}."
        ),
    ) as told:
        crowd.measure()
    assert not isinstance(told.value, TooSmall)
    assert told.value.exit_code == exits.FAILED
    assert str(tmp_path / "logs") in told.value.next_step
    assert crowd_that(monkeypatch, tmp_path, per_s=40.0, answered=240).measure() == Capacity(40.0, 2, 4.0)


@pytest.mark.parametrize(("alone", "asked"), [(18.0, 8.0), (40.0, 8.0), (60.0, 12.0), (80.0, 16.0), (400.0, 16.0)])
def test_the_load_gate_asks_faster_where_the_graph_is_faster(alone: float, asked: float) -> None:
    assert gate_rate(alone) == asked


def test_a_model_that_cannot_be_tried_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICEGATE_SERVING_VENV", str(tmp_path / "none"))
    with pytest.raises(CommandError, match=r"The model could not be tried: .*none/bin/python") as told:
        check_graph(tmp_path)
    assert (told.value.exit_code, told.value.next_step) == (
        exits.INFRASTRUCTURE,
        "`make setup` installs the serving environment.",
    )
    within: list[float] = []

    def run(*_: Any, timeout_s: float, **__: Any) -> str:
        within.append(timeout_s)
        raise child.ChildFailed("timed out")

    monkeypatch.setattr(child, "run", run)
    with pytest.raises(CommandError, match="timed out"):
        check_graph(tmp_path)
    assert within and within[0] > GRAPH_S


def tale() -> story.Tale:
    return story.Tale(Mock(), story.Teller(as_json=True), Mock(is_there=False))


def test_users_come_at_the_measured_rate_and_later_rollouts_are_planned_for_it() -> None:
    told = tale()
    told.objectives = OBJECTIVES
    told.traffic.measure.return_value = Capacity(30, at_once=2, seconds=6)
    story._let_in(told)
    told.traffic.begin.assert_called_once_with(10)
    author = Mock(**{"get.return_value": {"version": 7}})
    story._plan(told, author, told.capacity.users_per_s if told.capacity else 0)
    author.patch.assert_called_once_with("/models/sentiment", {"rollout_policy": plan_for(10, OBJECTIVES)}, version=7)


def test_no_users_come_to_a_machine_that_is_too_small() -> None:
    told = tale()
    told.traffic.measure.return_value = Capacity(5, at_once=2, seconds=6)
    with pytest.raises(TooSmall):
        story._let_in(told)
    told.traffic.begin.assert_not_called()
    assert told.capacity is not None  # the report tells what was measured


def test_too_small_a_machine_ends_the_demo_with_the_code_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = tale()
    monkeypatch.setattr(story, "Client", MagicMock())
    monkeypatch.setattr(story, "assemble", Mock())
    monkeypatch.setattr(story, "_play", Mock(side_effect=TooSmall("it serves 2.0")))
    monkeypatch.setattr(story, "_envoy_version", lambda _: "")
    told.traffic.log = tmp_path / "none"
    written = story._perform(told)
    assert written["is_too_small"] and "it serves 2.0" in written["problem"]
    assert story._conclude(written, told.teller) == exits.INFRASTRUCTURE
