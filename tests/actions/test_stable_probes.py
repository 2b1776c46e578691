"""Golden probes of stable outside rollouts: who is asked, what counts, and the alarm."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from rollouts.core.indicators import PROBE
from rollouts.core.watch.sequential_test import PAGE
from rollouts.core.watch.watched import Standing
from rollouts.models import Alarm, Mismatch, ProbeTally
from rollouts.prober import golden
from rollouts.queries.alarms import judged_since_promotion, objectives_now
from rollouts.queries.prober_tallies import probe_readings
from rollouts.watch.stable_watch import StableWatch
from serving.ports import InferenceError
from tests.support.rigs.engine_rig import leading
from tests.support.worlds.alarm_setup import counted, route_of
from tests.support.worlds.factories import make_release
from tests.support.worlds.prober_setup import World, committed, make_world, until  # noqa: F401
from tests.support.worlds.rollout_setup import put, report_for
from validators.core.golden_set import GoldenItem
from validators.core.policy import asks_golden_set
from validators.models import GateResult
from validators.queries.disagreements import right_in_run

SET = {"gates": ["golden"], "golden": {"set": f"sha256:{'5' * 64}"}}
#: The label is the place of the largest number.
ITEMS = tuple(GoldenItem(f"i{i}", {"x": [float(i == at) for at in range(4)]}, i) for i in range(4))


def wrong(arrays: dict[str, Any]) -> dict[str, Any]:
    return {"y": -arrays["x"].astype(np.float32)}


@pytest.fixture
def stable(monkeypatch: pytest.MonkeyPatch, make_world: Callable[..., World]) -> World:
    """r2 was promoted over r1, which is warm. A server may be asked at any time."""
    monkeypatch.setattr(golden, "golden_items", lambda model, digest: ITEMS)
    monkeypatch.setattr(golden, "right_in_run", lambda gate_run, items: items)
    monkeypatch.setattr(golden, "EVERY_S", 0.0)
    monkeypatch.setattr(golden, "MOST_BUSY_FRAC", 1.0)
    world = make_world(gate_policy=SET)
    put(world.rollout, "promoted")
    world.route.stable, world.route.candidate = world.candidate, None
    world.route.save()
    return world


def probed(world: World, turns: int) -> tuple[int, int, int, int]:
    """(attempts of stable, bad, attempts of the release before, bad) after this number of probes."""
    for _ in range(turns):
        world.prober.turn()
        until(lambda: not world.prober.stable._busy)
    world.prober.book.write()
    tally = ProbeTally.objects.get(rollout=world.rollout)
    assert tally.guard == "probe"
    return tally.candidate_attempts, tally.candidate_bad, tally.stable_attempts, tally.stable_bad


@committed
def test_stable_and_the_release_before_are_asked_the_same(stable: World) -> None:
    assert probed(stable, 4) == (4, 0, 4, 0)
    assert sorted(stable.asked) == ["r1"] * 4 + ["r2"] * 4


@committed
def test_a_wrong_answer_and_none_count_for_stable_alone(stable: World) -> None:
    stable.candidate_model.compute = wrong
    assert probed(stable, 3) == (3, 3, 3, 0)
    assert "answers" in Mismatch.objects.filter(rollout=stable.rollout)[0].summary

    def failing(arrays: dict[str, Any]) -> dict[str, Any]:
        raise InferenceError("unreachable", "gone")

    stable.candidate_model.compute = failing
    stable.stable_model.compute = failing
    assert probed(stable, 2) == (5, 5, 3, 0)


@committed
def test_each_server_of_stable_gets_its_turn_and_no_more_than_a_share_of_its_time(
    stable: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stable.serve(stable.candidate, port=9500)
    ports: list[int] = []
    at = stable.prober._servers.at
    monkeypatch.setattr(
        stable.prober._servers, "at", lambda endpoint: (ports.append(endpoint.http_port), at(endpoint))[1]
    )
    probed(stable, 4)
    assert sorted(port for port in ports if port != 9010) == [9020, 9020, 9500, 9500]
    monkeypatch.setattr(golden, "MOST_BUSY_FRAC", 0.01)
    stable.candidate_model.compute = lambda arrays: (time.sleep(0.05), {"y": arrays["x"]})[1]
    before = probed(stable, 2)[0]
    assert probed(stable, 5)[0] <= before + 1  # 50 ms of an answer buy five seconds of rest


@committed
def test_a_release_without_servers_and_one_without_proven_items_are_not_asked(
    stable: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(golden, "right_in_run", lambda gate_run, items: ())
    assert probed(stable, 3) == (0, 0, 0, 0)
    assert stable.asked == []


@pytest.mark.django_db
def test_only_items_that_the_release_answered_rightly_are_asked() -> None:
    run = report_for(make_release()).gate_run

    def of(**evidence: Any) -> list[str]:
        GateResult.objects.filter(gate_run=run).delete()
        GateResult.objects.create(gate_run=run, gate="golden", position=0, evidence=evidence)
        return [one.id for one in right_in_run(run.pk, ITEMS)]

    assert of(accuracy={"value": 0.75}, predictions=[0, 1, 0, 3]) == ["i0", "i1", "i3"]
    assert of(accuracy={"value": 1.0}) == ["i0", "i1", "i2", "i3"]
    assert of(accuracy={"value": 0.75}) == of(accuracy={"value": 0.75}, predictions=[0]) == of() == []
    assert list(right_in_run(None, ITEMS)) == []


@pytest.mark.parametrize(
    ("policy", "is_asked"),
    [({}, False), (SET, True), ({"golden": {"set": "sha256:5"}}, True), ({**SET, "gates": ["contract"]}, False)],
)
def test_a_golden_set_counts_if_a_gate_of_the_policy_asks_it(policy: dict[str, Any], is_asked: bool) -> None:
    assert asks_golden_set(policy) is is_asked


class Silent:
    """Gateways without requests."""

    def read(self, **_: Any) -> dict[str, Any]:
        return {}


class Watching:
    """The watch of a promoted release that the prober asks once a bin, by a clock that goes by bins."""

    def __init__(self, world: World) -> None:
        self.world, self.at = world, datetime.now(UTC)
        self.watch = StableWatch(Silent(), leading(), lambda: self.at)  # type: ignore[arg-type]
        self.counts = [0, 0, 0, 0]

    def bins(self, count: int, *, bad: int = 0, before: int = 0, epoch: str = "1:a", asked: int = 1) -> None:
        for _ in range(count):
            self.at += timedelta(seconds=PAGE.bin_s)
            added = (asked, bad, asked, before)
            self.counts = [have + more for have, more in zip(self.counts, added, strict=True)]
            names = ("candidate_attempts", "candidate_bad", "stable_attempts", "stable_bad")
            values = {"epoch": epoch, "at": self.at, **dict(zip(names, self.counts, strict=True))}
            ProbeTally.objects.update_or_create(rollout=self.world.rollout, guard="probe", defaults=values)
            self.watch.turn()


@committed
def test_a_stable_release_without_traffic_that_answers_wrongly_pages_within_90_s(stable: World) -> None:
    scene = Watching(stable)
    scene.bins(30)
    assert not Alarm.objects.exists()
    broken_at = scene.at
    scene.bins(9, bad=1)
    alarm = Alarm.objects.get()
    assert (alarm.objective, alarm.tier, alarm.release) == ("probe", "page", stable.candidate)
    assert alarm.opened_at - broken_at <= timedelta(seconds=90)
    assert "wrong answers to golden probes of r2" in alarm.reason


@committed
def test_one_wrong_answer_and_a_prober_that_begins_anew_raise_no_alarm(stable: World) -> None:
    scene = Watching(stable)
    scene.bins(60)
    scene.bins(3, bad=1)
    scene.bins(60)
    scene.counts = [0, 0, 0, 0]
    scene.bins(1, bad=1, epoch="2:b")
    scene.bins(20, epoch="2:b")
    assert not Alarm.objects.exists()


@committed
def test_users_and_probes_are_counted_apart_and_no_window_waits_for_probes(stable: World) -> None:
    Watching(stable).bins(8)
    rows = {one.name: one for one in objectives_now(route_of(stable.model))}
    assert (rows["probe"].attempts, rows["errors"].attempts) == (6, 0)
    counted(stable.model, bad=0, attempts=5000)
    _, judged = judged_since_promotion(stable.rollout)
    assert [one.name for one in judged] == ["errors"]
    scene = Watching(stable)
    scene.bins(12, bad=1)
    _, judged = judged_since_promotion(stable.rollout)
    assert {one.name: one.standing for one in judged}["probe"] is Standing.BURNING


@committed
def test_counts_of_a_prober_that_is_gone_are_unknown(stable: World) -> None:
    scene = Watching(stable)
    scene.bins(3)
    assert len(probe_readings(scene.at)) == 1 and probe_readings(scene.at + timedelta(seconds=30)) == {}
    for _ in range(7):
        scene.at += timedelta(seconds=PAGE.bin_s)
        scene.watch.turn()
    found = {one.name: one for one in objectives_now(route_of(stable.model), scene.at)}["probe"]
    assert found.unknown_s >= 40 and found.attempts == 2


def test_the_share_that_is_allowed_is_the_models_own() -> None:
    from rollouts.core.watch.objective import probed as objective

    assert objective({}).max_frac == PROBE.max_frac == 0.01
    assert objective({"wrong": {"max_frac": 0.03}}).max_frac == 0.03
