"""The demo's report and its story: percentiles, the users' part, a rollback's clock, differences, and where the story ends early."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sluicegate.cli.errors import CommandError
from sluicegate.cli.output import Output
from sluicegate.client import Client
from sluicegate.demo import report, story
from sluicegate.demo.corpus import LETTER_BYTES, MIX, PARAGRAPH_WORDS, write_one
from sluicegate.demo.timeouts import PAUSE_S, STAGE_S, StoryTimeout
from sluicegate.demo.traffic import Record
from sluicegate.stack.lock import StackLock


def record(
    at: float, *, release: str = "r1", ok: bool = True, latency_ms: float = 10.0, protocol: str = "http"
) -> Record:
    return Record(at, at, latency_ms, protocol, "sentence", ok, release, "" if ok else "HTTP 503")


@pytest.mark.parametrize(("quantile", "expected"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.001, 1.0)])
def test_percentiles_are_nearest_rank(quantile: float, expected: float) -> None:
    assert report.percentile([float(i) for i in range(1, 101)], quantile) == expected


def test_there_is_no_percentile_of_nothing() -> None:
    assert report.percentile([], 0.5) is None


def test_the_users_part_counts_failures_and_who_answered() -> None:
    records = [
        record(1),
        record(2, release="r2", protocol="grpc"),
        record(3, ok=False, release="r2"),
        record(4, release="r2"),
    ]
    part = report.client_part(records)
    assert (part["requests"], part["failed"]) == (4, 1)
    assert part["by_release"] == {"r1": 1, "r2": 2}
    assert part["by_protocol"] == {"grpc": 1, "http": 3}
    assert part["failures"] == [{"at": "1970-01-01T00:00:03+00:00", "release": "r2", "error": "HTTP 503"}]


def test_the_measurement_is_no_user_but_its_failures_are_failures() -> None:
    measuring = replace(record(1, release="r1", latency_ms=900.0), is_measuring=True)
    failed = replace(record(2, release="", ok=False), is_measuring=True)
    shed = replace(failed, is_shed=True)
    part = report.client_part([measuring, shed, failed, record(3, release="r2", latency_ms=20.0)])
    assert (part["requests"], part["by_release"], part["by_protocol"]) == (1, {"r2": 1}, {"http": 1})
    assert (part["p50_ms"], part["p99_ms"]) == (20.0, 20.0)
    assert (part["failed"], len(part["failures"])) == (1, 1)
    assert report.client_part([replace(record(1, ok=False), is_shed=True)])["failed"] == 1  # a user was refused


def test_a_log_cut_short_loses_its_last_line_only(tmp_path: Path) -> None:
    log = tmp_path / "traffic.jsonl"
    log.write_text(json.dumps(record(1).__dict__) + "\n" + json.dumps(record(2).__dict__)[:20])
    assert report.read_log(log) == [record(1)]
    assert report.read_log(tmp_path / "absent") == []


def observation(tick: int, weight_bp: int, *, errors: int = 0, slow: int = 0) -> dict[str, Any]:
    return {
        "tick": tick,
        "at": f"2026-01-01T00:00:{tick:02}+00:00",
        "weight_bp": weight_bp,
        "candidate": {"attempts": 5, "routed": 5, "bad": {"errors": errors, "slow_250ms": slow, "bytes_512": 5}},
        "stable": {"attempts": 15, "routed": 15, "bad": {"errors": 0, "slow_250ms": 0}},
    }


def rolled_back() -> dict[str, Any]:
    return {
        "id": 4,
        "guards": [{"name": "errors"}, {"name": "slow_250ms"}],
        "state": "rolled_back",
        "candidate": {"name": "r4"},
        "stable": {"name": "r2"},
        "reason": "Slow requests.",
        "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:00:12+00:00",
        "clock": {
            "first_bad_at": "2026-01-01T00:00:03+00:00",
            "decided_at": "2026-01-01T00:00:09+00:00",
            "zero_at": "2026-01-01T00:00:09.250000+00:00",
        },
    }


def test_a_rollback_is_timed_by_the_engine_and_checked_by_the_users() -> None:
    decided = 1767225609.0  # 2026-01-01T00:00:09Z
    records = [
        record(decided - 2, release="r4"),
        record(decided + 0.2, release="r4"),
        record(decided + 5, release="r2"),
    ]
    ticks = [
        observation(1, 0),
        observation(2, 2500),
        observation(3, 2500, slow=2),
        observation(4, 5000, errors=1),
    ]
    part = report.rollout_part(rolled_back(), list(reversed(ticks)), records)
    assert part["fault_to_zero_weight_s"] == 6.25
    assert part["decision_to_zero_weight_s"] == 0.25
    assert part["last_candidate_request_after_decision_s"] == 0.2
    assert [s["weight_pct"] for s in part["steps"]] == [25, 50, 0]
    assert part["steps"][-1]["at"] == "2026-01-01T00:00:09.250000+00:00"
    assert part["steps"][0]["at"] == "2026-01-01T00:00:02+00:00"
    assert (part["candidate_attempts"], part["bad_candidate_attempts"]) == (20, 2)


def test_the_clock_of_a_rollout_with_two_looks_is_that_of_the_first() -> None:
    view = rolled_back()
    first = {"decided_at": "2026-01-01T00:00:04+00:00", "zero_at": "2026-01-01T00:00:04.500000+00:00"}
    conviction = {"decided_at": "2026-01-01T00:00:09+00:00", "zero_at": "2026-01-01T00:00:09.250000+00:00"}
    view["clock"] |= first
    view["second_look"] = {"crossings": [first], "conviction": conviction}
    view["decisions"] = [{"action": "start", "at": f"2026-01-01T00:00:0{second}+00:00"} for second in (8, 1)]
    ticks = [observation(2, 2500), observation(3, 5000), observation(6, 0), observation(8, 2500)]
    began = datetime.fromisoformat("2026-01-01T00:00:00+00:00").timestamp()
    records = [record(began + second, release="r4") for second in (3.5, 4.25, 8.5)]
    part = report.rollout_part(view, ticks, records)
    assert [step["weight_pct"] for step in part["steps"]] == [25, 50, 0, 25, 0]
    assert part["last_candidate_request_after_decision_s"] == 0.25


def good() -> dict[str, Any]:
    def sealed(number: int, golden: str = "passed") -> dict[str, Any]:
        return {
            "number": number,
            "digest": "",
            "state": "sealed",
            "gates": [{"gate": "golden", "verdict": golden, "reason": ""}],
        }

    def ended(candidate: str, outcome: str) -> dict[str, Any]:
        seconds = 0.3 if outcome == "rolled_back" else None
        return {
            "candidate": candidate,
            "outcome": outcome,
            "reason": "so",
            "fault_to_zero_weight_s": seconds,
            "decision_to_zero_weight_s": seconds,
        }

    return {
        "releases": [sealed(1), sealed(2), sealed(3, "failed"), sealed(4), sealed(5)],
        "rollouts": [
            ended("r1", "promoted"),
            ended("r2", "promoted"),
            ended("r4", "rolled_back"),
            ended("r5", "rolled_back"),
        ],
        "client": {"requests": 100, "failed": 0, "failures": [], "by_release": {"r1": 50, "r2": 50}},
    }


def test_a_demo_as_it_should_be_has_no_differences() -> None:
    assert report.differences(good()) == []


def change_nothing_stopped(told: dict[str, Any]) -> None:
    told["releases"][2]["gates"][0]["verdict"] = "passed"


def change_wrong_end(told: dict[str, Any]) -> None:
    told["rollouts"][2]["outcome"] = "promoted"


def change_no_clock(told: dict[str, Any]) -> None:
    told["rollouts"][3]["fault_to_zero_weight_s"] = None


def change_user_failed(told: dict[str, Any]) -> None:
    told["client"] |= {"failed": 1, "failures": [{"error": "HTTP 503"}]}


def change_forbidden_traffic(told: dict[str, Any]) -> None:
    told["client"]["by_release"]["r3"] = 1


def change_no_rollout(told: dict[str, Any]) -> None:
    del told["rollouts"][1]


def change_no_users(told: dict[str, Any]) -> None:
    told["client"]["requests"] = 0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (change_nothing_stopped, "r3 should have failed the golden gate"),
        (change_wrong_end, "r4 ended promoted, not rolled_back"),
        (change_no_clock, "r5 was rolled back, but its fault_to_zero_weight_s was not measured"),
        (change_user_failed, "1 of 100 user requests failed"),
        (change_forbidden_traffic, "r3 should never have had traffic"),
        (change_no_rollout, "r2 had no rollout"),
        (change_no_users, "no user request at all"),
    ],
)
def test_each_difference_is_told(change: Any, word: str) -> None:
    told = copy.deepcopy(good())
    change(told)
    wrong = report.differences(told)
    assert len(wrong) == 1
    assert word in wrong[0]


def test_texts_are_of_three_kinds_and_seeded() -> None:
    sentences = ["A short one.", "Another short sentence, a little longer."]
    first = [write_one(sentences, random.Random(7)) for _ in range(3)]
    assert first[0] == first[1] == first[2]
    chance = random.Random(1)
    texts = [write_one(sentences, chance) for _ in range(2000)]
    assert {t.kind for t in texts} == set(MIX)
    assert all(len(t.text.split()) >= PARAGRAPH_WORDS for t in texts if t.kind == "paragraph")
    assert all(len(t.text.encode()) >= LETTER_BYTES for t in texts if t.kind == "letter")
    assert 0.03 < sum(t.kind == "letter" for t in texts) / len(texts) < 0.07


def test_a_demo_never_tells_its_story_over_somebody_elses_state(tmp_path: Path) -> None:
    assert story._fresh(tmp_path / "new") == tmp_path / "new"
    assert story._fresh(tmp_path) == tmp_path
    (tmp_path / "precious").write_text("data")
    with pytest.raises(CommandError, match="not empty") as refused:
        story._fresh(tmp_path)
    assert refused.value.exit_code == 3
    assert (tmp_path / "precious").exists()


def test_the_demos_own_state_is_made_anew_unless_a_demo_runs_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    monkeypatch.setattr(story, "DEFAULT_STATE", folder)
    (folder / "traffic.jsonl").write_text("old")
    running = StackLock(folder)
    running.acquire()
    with pytest.raises(CommandError, match="already runs"):
        story._fresh(None)
    assert (folder / "traffic.jsonl").exists()
    running.release()
    assert story._fresh(None) == folder
    assert not folder.exists()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_rollout_that_stands_still_ends_the_story() -> None:
    clock = Clock()
    patience = StoryTimeout(clock=clock)
    view = {"state": "baking", "step_index": 2, "weight_bp": 5000, "candidate": {"name": "r2"}, "reason": "Held."}
    patience.look(view)
    clock.now += STAGE_S - 1
    patience.look(view)
    patience.look({**view, "weight_bp": 10_000})  # it moved: the wait begins anew
    clock.now += STAGE_S - 1
    patience.look({**view, "weight_bp": 10_000})
    clock.now += 1
    with pytest.raises(
        CommandError, match=r"left its path: the rollout of r2 has stood still for 600 s\. Held\."
    ) as end:
        patience.look({**view, "weight_bp": 10_000})
    assert end.value.exit_code == 1


def test_a_pause_ends_the_story_soon_since_nobody_is_there_to_resume() -> None:
    clock = Clock()
    patience = StoryTimeout(clock=clock)
    view = {"state": "paused", "step_index": 0, "weight_bp": 10_000, "candidate": "r2", "reason": "A person must act."}
    patience.look(view)
    clock.now += PAUSE_S
    with pytest.raises(CommandError, match="r2 is paused, and waits for a person. A person must act."):
        patience.look(view)


def tale_of(monkeypatch: pytest.MonkeyPatch, verdicts: list[str]) -> tuple[story.Tale, list[str]]:
    """A tale whose gates say these verdicts in turn, and the releases whose gates ran."""
    ran: list[str] = []

    def start(_: Client, name: str) -> dict[str, Any]:
        ran.append(name)
        return {"url": "/gate-runs/1"}

    def wait(*_: Any, **__: Any) -> dict[str, Any]:
        return {"verdict": verdicts.pop(0), "reason": "load failed."}

    monkeypatch.setattr(Client, "start_gates", start)
    monkeypatch.setattr(story.gates, "wait", wait)
    return story.Tale(Mock(), story.Teller(as_json=True), Mock()), ran


def client_that_sees(
    monkeypatch: pytest.MonkeyPatch, look: Callable[[], dict[str, Any]], observations: Sequence[dict[str, Any]] = ()
) -> Client:
    """Whatever it reads is what `look` gives; every list has these rows."""
    monkeypatch.setattr(Client, "get", lambda *_, **__: look())
    monkeypatch.setattr(Client, "pages", lambda *_, **__: iter(observations))
    return Client("http://127.0.0.1:1")


def test_gates_that_should_pass_run_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    tale, ran = tale_of(monkeypatch, ["failed", "passed"])
    assert story._validate(tale, Client("http://127.0.0.1:1"), "r1") == "passed"
    assert ran == ["sentiment/r1", "sentiment/r1"]


def test_without_a_first_release_the_story_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tale, _ = tale_of(monkeypatch, ["failed", "undecided"])
    with pytest.raises(CommandError, match="left its path: r1 did not pass its gates") as end:
        story._validate(tale, Client("http://127.0.0.1:1"), "r1")
    assert end.value.exit_code == 1
    assert tale.gate_runs["r1"]["verdict"] == "undecided"


def test_gates_that_should_fail_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tale, ran = tale_of(monkeypatch, ["failed"])
    assert story._validate(tale, Client("http://127.0.0.1:1"), "r3") == "failed"
    assert ran == ["sentiment/r3"]


def test_a_rollout_that_was_left_is_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    tale, _ = tale_of(monkeypatch, [])
    now = {"id": 2, "state": "paused", "weight_bp": 10_000}
    client = client_that_sees(monkeypatch, lambda: now, observations=[{"tick": 1}])
    monkeypatch.setattr("sluicegate.demo.timeouts.PAUSE_S", 0.0)
    with pytest.raises(CommandError, match="left its path"):
        story._follow(tale, client, client, {"id": 2, "state": "preparing"})
    assert tale.rollouts == [now]
    assert tale.observations == {2: [{"tick": 1}]}


def test_a_pause_is_resumed_once_by_the_release_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    tale, _ = tale_of(monkeypatch, [])
    tale.traffic.begin.return_value = False
    now = {"id": 2, "state": "paused", "weight_bp": 10_000, "version": 3}
    manager, acted = Mock(), []
    client = client_that_sees(monkeypatch, lambda: now | ({"state": "promoted"} if acted else {}))
    monkeypatch.setattr(story, "RESUME_AFTER_S", 0.01)
    monkeypatch.setattr("sluicegate.client.client.PAUSE_S", 0.02)
    monkeypatch.setattr(story.rollout, "act", lambda who, pk, verb, reason: acted.append((who, pk, verb)))
    assert story._follow(tale, client, manager, {"id": 2, "state": "preparing"})["state"] == "promoted"
    assert acted == [(manager, 2, "resume")]


def test_how_to_sign_in_is_told_when_the_pages_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    stack = Mock(base_url="http://127.0.0.1:1", admin_password="secret", state_dir=tmp_path)

    def perform(_: story.Tale) -> dict[str, Any]:
        assert "sign in as admin / secret" in "".join(said)
        return {}

    monkeypatch.setattr(story, "running", lambda folder: contextlib.nullcontext(stack))
    monkeypatch.setattr(story, "_perform", perform)
    monkeypatch.setattr(story, "_conclude", lambda *_: 0)
    monkeypatch.setattr(Output, "say", lambda _, line: said.append(line))
    assert story.tell(Output(as_json=True), state_dir=tmp_path / "new", report_file=None, leave_up=False) == 0
    assert said[-1].endswith(f"to see it again: sluicegate up --state {tmp_path}, and sign in as admin / secret")


@pytest.mark.parametrize(("written", "stays"), [({"is_too_small": True}, False), ({}, True)])
def test_a_demo_that_may_stay_up_ends_where_the_machine_is_too_small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: dict[str, Any], stays: bool
) -> None:
    stay = Mock()
    monkeypatch.setattr(story, "running", lambda folder: contextlib.nullcontext(Mock(state_dir=tmp_path)))
    monkeypatch.setattr(story, "_perform", lambda _: dict(written))
    monkeypatch.setattr(story, "_conclude", lambda *_: 2)
    monkeypatch.setattr(story, "_stay", stay)
    assert story.tell(Output(as_json=True), state_dir=tmp_path / "new", report_file=None, leave_up=True) == 2
    assert stay.called is stays
