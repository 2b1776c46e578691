"""Processes killed, and frozen, at a handful of their writes; `make kills` takes every one (docs/reliability.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from serving.ports import GatewayCounters
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.core.buckets import EDGES_US
from sluicegate.settings import BASE_DIR
from tests.kills import campaign, checks, gateway, victims
from tests.kills.__main__ import _campaign, _handful, _said
from tests.kills.fleet_checks import Seen, broken_lives, look, unsettled, wrong_now
from tests.kills.machine import RUNS, Machine
from tests.kills.points import AFTER, BEFORE, LASTING, Point, late_in, written_by
from tests.support.rigs.gateway_rig import wait_until
from tests.support.worlds.factories import make_replica, make_server

#: The first of them waits for all campaigns: three minutes where nothing else runs.
pytestmark = pytest.mark.timeout(1800)
LONGEST_S = 1740


def kills(tmp_path: Path, *words: str) -> dict[str, Any]:
    """The report of `python -m tests.kills`, which has stores of its own."""
    ours = {"DATABASE_URL", "REDIS_URL", "SLUICEGATE_STATE_DIR"}
    env = {name: value for name, value in os.environ.items() if name not in ours}
    file = tmp_path / "kills.json"
    argv = [sys.executable, "-m", "tests.kills", "--report", str(file), *words]
    done = subprocess.run(argv, cwd=BASE_DIR, env=env, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert file.exists(), done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(file.read_text())
    return found


#: A handful of kills of everybody in some of the stories, so that every commit can afford them; `make kills` takes every
#: write of all.
HANDFUL, STORIES = 4, 2
SAMPLE = ["--changed", "--stories", str(STORIES), "--handful", str(HANDFUL)]


@pytest.fixture(scope="module")
def seed(request: pytest.FixtureRequest) -> str:
    """Another sample in every run; the run's own seed repeats it."""
    return str(request.config.getoption("randomly_seed", default=1))


@pytest.fixture(scope="module")
def found(seed: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By campaign; all in one process, since stores, tables and the undisturbed runs take longer than those that are killed."""
    return kills(tmp_path_factory.mktemp("killed"), "--seed", seed, *SAMPLE)


@pytest.mark.parametrize("victim", ["engine", "worker", "agent", "control plane", "relay", "web", "fleet"])
def test_who_is_killed_at_any_write_is_replaced_and_nothing_is_lost_or_done_twice(
    victim: str, found: dict[str, Any]
) -> None:
    killed = found["killed"]
    assert problems(killed, victim) == []
    counts = killed["kinds"][victim]
    assert counts["runs"] == HANDFUL and counts["stories"] == (1 if victim == "relay" else STORIES)
    assert counts["killed"] > 0


@pytest.mark.parametrize("victim", ["engine", "worker", "agent", "relay", "fleet"])
def test_who_was_frozen_while_another_took_over_does_nothing_more(victim: str, found: dict[str, Any]) -> None:
    frozen = found["frozen"]
    assert problems(frozen, victim) == []
    assert frozen["kinds"][victim]["runs"] == HANDFUL and frozen["kinds"][victim]["frozen"] > 0


def test_most_runs_reach_their_points(found: dict[str, Any]) -> None:
    for one in (found["killed"], found["frozen"]):
        assert campaign.missed(one) == [] and one["code"] == (1 if one["wrong"] else 0)


def problems(found: dict[str, Any], kind: str) -> list[str]:
    runs = [run for run in found["wrong"] if run["victim"].startswith(f"{kind}, ")]
    return [f"{run['victim']}, {run['side']} {run['site']}: {'; '.join(run['problems'])}" for run in runs]


def test_transactions_that_are_torn_are_found_out(found: dict[str, Any]) -> None:
    """The test of the test: with commits in the middle of transactions, and a file that is written in place, a death does lose and
    double things."""
    torn = found["torn"]
    said = " ".join(problem for run in torn["wrong"] for problem in run["problems"])
    assert torn["code"] == 1 and all(counts["wrong"] for counts in torn["kinds"].values())
    assert set(torn["kinds"]) == {"engine", "agent", "relay", "fleet"}
    assert len(problems(torn, "engine")) >= 3
    assert "had arrived in" in said or "after" in said
    assert "was acknowledged, and 0 is kept" in said
    assert "cut off, gateway.drained is told 0 times, and rows changed: True" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--freeze", "--only", "plane"], "No control plane can be frozen.\n"),
        (["--only", "nobody"], "No victim has 'nobody' in its name.\n"),
        (["--torn", "--only", "worker"], "No broken victim has 'worker' in its name.\n"),
    ],
)
def test_where_nobody_can_be_chosen_it_says_so(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tests.kills", *words])
    assert _campaign(_said(), tmp_path) == 2
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("nobody", "parts", "code"),
    [
        ({"torn"}, {"killed", "frozen"}, 1),  # relay alone: frozen it goes wrong here
        ({"frozen", "torn"}, {"killed"}, 0),  # the control plane alone
        ({"killed", "frozen", "torn"}, None, 2),
        (set(), {"killed", "frozen", "torn"}, 1),
    ],
)
def test_a_handful_without_some_of_its_campaigns_tells_of_the_others(
    nobody: set[str], parts: set[str] | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def campaigned(said: Any, folder: Path, **_: Any) -> int:
        part = "torn" if said.torn else "frozen" if said.freeze else "killed"
        if part in nobody:
            return 2
        said.report.write_text('{"is_cut_off": false}')
        return 0 if part == "killed" else 1

    file = tmp_path / "kills.json"
    monkeypatch.setattr("tests.kills.__main__._campaign", campaigned)
    monkeypatch.setattr(sys, "argv", ["tests.kills", "--handful", "1", "--report", str(file)])
    assert _handful(_said(), tmp_path) == code
    assert (set(json.loads(file.read_text())) if file.exists() else None) == parts


# --- the parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ('INSERT INTO "ledger_event" ("seq") VALUES (1)', "INSERT ledger_event"),
        ('UPDATE "rollouts_rollout" SET "tick" = 1', "UPDATE rollouts_rollout"),
        (
            "WITH a AS (SELECT 1 FOR NO KEY UPDATE OF b SKIP LOCKED) UPDATE rollouts_rollout r SET x = 1",
            "UPDATE rollouts_rollout",
        ),
        ("WITH a AS (SELECT 1 FOR UPDATE) SELECT * FROM a", ""),
        ("SELECT pg_notify('routes', 'production')", "NOTIFY gateways"),
        ('SELECT "x" FROM "ledger_event" FOR UPDATE', ""),
        ('SAVEPOINT "s1"', ""),
    ],
)
def test_what_is_a_write(sql: str, what: str) -> None:
    assert written_by(sql) == what


def test_points_are_both_sides_of_every_write_up_to_the_last_that_is_no_renewal() -> None:
    renewal = "UPDATE ledger_lease @ renew"
    found = list(campaign.points_of(["a", renewal, "a", "b", renewal], ["a", renewal, "b"]))
    assert found == [Point(site, 1, side) for site in ("a", renewal, "b") for side in (BEFORE, AFTER)]


def test_a_handful_is_one_of_each_kind_of_victim() -> None:
    one, other, third = (Point(site, 1, BEFORE) for site in ("a", "b", "c"))
    chosen = [("engine, breach", one), ("web, abort", one), ("engine, breach", other), ("engine, promoted", third)]
    engines, web = (
        SimpleNamespace(name=name, kind=name.partition(",")[0]) for name in ("engine, breach", "web, abort")
    )
    promoted = SimpleNamespace(name="engine, promoted", kind="engine")
    kept = campaign.first_of_each_kind(chosen, [engines, web, promoted], 2)  # type: ignore[list-item]
    assert kept == [chosen[0], chosen[1], chosen[2]]


def test_what_the_last_commit_changed_comes_first_and_the_rest_in_its_order() -> None:
    def at(site: str) -> campaign.Target:
        return "engine, breach", Point(site, 1, BEFORE)

    chosen = [
        at("a @ rollouts.queries.x"),
        at("b @ rollouts.actions.transitions.move < y"),
        at("c @ ledger.actions.leases.z"),
    ]
    assert campaign.changed_first(chosen, ["rollouts.actions.transitions", "web.pages"]) == [
        chosen[1],
        chosen[0],
        chosen[2],
    ]
    assert campaign.changed_first(chosen, ["rollouts.actions.mov"]) == chosen
    assert campaign.changed_first(chosen, []) == chosen


def test_a_draw_of_stories_takes_so_many_of_each_kind() -> None:
    every = [*victims.victims()]
    drawn = campaign.some(every, 7, 2)
    kinds = Counter(victim.kind for victim in drawn)
    assert set(kinds) == {victim.kind for victim in every} and set(kinds.values()) == {1, 2}
    assert [kind for kind, count in kinds.items() if count == 1] == ["relay"]  # which has one story
    assert drawn == [victim for victim in every if victim in drawn]  # in their order
    assert {name for seed in range(20) for name in (v.name for v in campaign.some(every, seed, 2))} > {
        victim.name for victim in drawn
    }
    assert campaign.some(every, 7, 100) == every


def test_too_few_points_that_were_reached_are_told() -> None:
    def found(kind: str, runs: int, killed: int, frozen: int = 0) -> dict[str, Any]:
        return {"kinds": {kind: {"runs": runs, "killed": killed, "frozen": frozen}}}

    assert campaign.missed(found("engine", 100, 81)) == campaign.missed(found("engine", 10, 4, 5)) == []
    assert campaign.missed(found("engine", 100, 80)) == ["engine: only 80 of 100 runs reached their point"]
    assert campaign.missed(found("control plane", 100, 57)) == campaign.missed(found("control plane", 8, 2)) == []
    assert campaign.missed(found("control plane", 100, 56)) != [] != campaign.missed(found("control plane", 8, 1))


def test_only_what_changed_something_for_good_counts_as_late() -> None:
    lines = ["a", "b", f"{LASTING} 0", "c", f"{LASTING} 1", "a", f"{LASTING} 3", f"{LASTING} 5", "b"]
    assert late_in(lines, 4) == ["a"]  # b and c were on their way
    assert late_in(lines, 4, Point("c", 1, BEFORE)) == ["c", "a"]
    assert late_in(lines, 4, Point("a", 1, BEFORE)) == ["a"]
    assert late_in(lines, 9) == []


def test_a_shut_candidate_must_stay_shut() -> None:
    up = [("r1", "r2", 2500), ("r1", "r2", 5000), ("r2", None, 0)]
    down = [("r1", "r2", 2500), ("r1", "r2", 0), ("r1", None, 0)]
    assert checks.reopened(up) == [] and checks.reopened(down) == []
    assert checks.reopened([*down, ("r1", "r2", 2500)]) != []
    assert checks.reopened([*up, ("r1", "r2", 9500)]) != []


def test_replicas_that_are_not_as_they_must_be_are_told(tmp_path: Path) -> None:
    node = Machine("a", tmp_path, 1200)
    one = Seen(1, "a", 0, "ready", answers=True, is_wanted=True, is_leaving=False, memory_mib=600)
    leaving = replace(one, pk=2, is_leaving=True)
    assert wrong_now([one, leaving], [node], 2) == []
    assert wrong_now([one, replace(one, pk=2)], [node], 1) == ["ordinal 0 has several replicas that are to stay"]
    assert wrong_now([one, leaving, replace(leaving, pk=3)], [node], 1) == ["1800 MiB of 1200 are given away on a"]
    assert wrong_now([replace(one, answers=False)], [node], 1) == ["0 replicas answer, and 1 must"]


@pytest.mark.django_db
def test_a_server_that_runs_and_nobody_knows_of_is_told(tmp_path: Path) -> None:
    node = Machine("local", tmp_path, 1200)
    server = make_server(make_replica(state="ready"), folder=str(tmp_path / "known"))
    away: frozenset[str] = frozenset()
    assert "known and not running" in unsettled(look(), [node], 1, away)
    for name in ("known", "unknown"):
        (tmp_path / name).mkdir()
        (tmp_path / name / RUNS).touch()
    assert str(tmp_path / "unknown") in unsettled(look(), [node], 1, away)
    (tmp_path / "unknown" / RUNS).unlink()
    assert unsettled(look(), [node], 1, away) == "" != unsettled(look(), [node], 2, away)
    assert "still wanted on nodes that are away" in unsettled(look(), [node], 1, frozenset({"local"}))
    told = broken_lives({})
    assert f"replica {server.replica_id} was requested 0 times" in told and len(told) == 3  # nor anything else


@pytest.mark.django_db(transaction=True)
def test_the_gateway_of_the_runs_tells_the_engine_what_it_counted(tmp_path: Path) -> None:
    """Its admin page is read as an Envoy's is."""
    from registry.models import Release
    from tests.kills.stories import Story

    Story("read", "preparing", starts=False).seed()
    running = gateway.start(tmp_path / "log", rate=50)
    try:
        digest = str(Release.objects.get(number=1).digest)
        wait_until(lambda: running.truth()["splits"], "a route that it follows", timeout_s=60)
        found = _read_twice(running)
        truth = running.truth()
    finally:
        running.process.kill()
    assert found.user_requests == truth["user_requests"] == 100 and found.user_errors == 0
    assert found.by_release[digest].decided == 100 and set(found.by_release[digest].latency_us) == set(EDGES_US)
    assert truth["splits"] == [[digest, None, 0]]
    assert abs((timezone.now() - found.read_at).total_seconds()) < 60


def _read_twice(running: gateway.RunningGateway) -> GatewayCounters:
    counters = EnvoyCounters()
    for _ in range(2):
        found = counters.read(gateway=gateway.NAME, admin_url=running.admin_url, timeout_s=60)
    return found["double"]
