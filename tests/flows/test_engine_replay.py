"""A rollout that the engine judged is judged again from what it stored: it leaves out what the engine left out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rollouts.actions.tick_records import ENGINE
from rollouts.core.replay import replay
from rollouts.core.tick_history import rows_in
from rollouts.models import DecisionRecord
from rollouts.queries.replay import history_of, replayed
from tests.support.worlds.telemetry_world import SECONDS, World

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _seconds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every turn is a second, however soon the next one comes; the gateways acknowledge between two ticks."""
    with SECONDS.installed(monkeypatch, is_frozen=True):
        yield


@pytest.mark.parametrize(("gateways", "latency_ms"), [(1, 20.0), (1, 1000.0), (2, 1000.0)])
def test_a_model_that_answers_slowly_is_judged_again_as_the_engine_judged_it(gateways: int, latency_ms: float) -> None:
    world = World(gateways=gateways, guards=[{"indicator": "errors"}])
    for gateway in world.gateways.values():
        for release in (world.stable, world.candidate):
            gateway.set_arm(release.digest or "", latency_ms=latency_ms)
    world.until_weight(5000)
    world.break_candidate()  # while answers to the new weight are still on their way
    rollout = world.until("rolling_back")
    rows = list(rows_in(history_of(rollout)))
    waited = [row for row in rows if row.mark.is_settling and row.arms.candidate.bad.get("errors", 0) > 0]
    assert bool(waited) == (latency_ms > 500)
    told = {
        one.tick: (one.action, one.code)
        for one in DecisionRecord.objects.filter(rollout=rollout, actor=ENGINE.name).order_by("tick")
    }
    again = {
        walk.tick: (walk.decision.action.value, walk.decision.code.value)
        for walk in replay(rows, rollout.effective_policy)
    }
    shared = sorted(set(told) & set(again))
    assert {tick: again[tick] for tick in shared} == {tick: told[tick] for tick in shared}
    effects = {tick: said for tick, said in told.items() if said[0] != "hold" and tick in again}
    assert {tick: said for tick, said in again.items() if said[0] != "hold"} == effects
    assert [said[0] for said in effects.values()] == ["advance", "roll_back"]


def test_a_model_whose_stored_policy_nobody_may_ask_for_today_is_replayed_by_it() -> None:
    world = World()
    rollout = world.bring("shifting")
    guards = [{"indicator": "errors", "dry_run": True}]
    type(world.model).objects.filter(pk=world.model.pk).update(rollout_policy={"preset": "demo", "guards": guards})
    rollout.model.refresh_from_db()
    told = replayed(rollout, None)
    assert told["policy"]["guards"][0]["dry_run"] and not told["is_own_policy"]
