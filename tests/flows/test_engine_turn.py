"""A turn over many rollouts: what is written together, first or later, who waits for nobody, and what never grows."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.core.access import Actor
from ledger.models import Event, Lease
from rollouts import actions
from rollouts.actions import tick_records
from rollouts.actions.tick_records import block_of, join_old_blocks
from rollouts.core import rollback_rules
from rollouts.core import tick as core_tick
from rollouts.core.decision import Action
from rollouts.core.engine_state import EngineState
from rollouts.core.replay import replay
from rollouts.core.tick import outcome_of
from rollouts.core.tick_history import BLOCK_ROWS, OpenSegment, rows_of
from rollouts.engine import loop as engine_module
from rollouts.engine import tick_writer
from rollouts.engine.lag_metrics import LagMetrics
from rollouts.engine.loop import Engine
from rollouts.engine.timings import EngineLimits, EngineTimings
from rollouts.models import DecisionRecord, Observation, Rollout
from serving.actions.routes import set_route
from serving.control_plane import store
from serving.models import Deployment, Gateway, Route, Server
from serving.ports import GatewayCounters, GatewayError
from tests.factories import make_admin, make_deployment, make_environment, make_model, make_release, make_server
from tests.fakes.gateway import FakeGateway

pytestmark = pytest.mark.django_db(transaction=True)

OBJECTIVES = {"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.01}}
#: The fake gateways acknowledge between two turns, and turns follow at once.
AT_ONCE = EngineTimings(zero_poll_for_s=0.0, gone_over_s=0.0)
#: One step that lasts: the rollouts shall go on, not end.
POLICY: dict[str, Any] = {
    "preset": "demo",
    "steps": [{"weight_pct": 25, "min_s": 3600, "min_samples": 40, "deadline_s": 7200}],
    "no_data_s": 600,
    "instant_window_s": 0,
}


class Gateways:
    """TrafficCounters over several fake gateways. `hung` ones answer when they are let go; `asked` counts the questions."""

    def __init__(self) -> None:
        self.fakes: dict[str, FakeGateway] = {}
        self.hung: set[str] = set()
        self.go_on = threading.Event()
        self.asked: list[str] = []

    def read(
        self, *, gateway: str, admin_url: str, timeout_s: float, models: Collection[str] | None = None
    ) -> dict[str, GatewayCounters]:
        self.asked.append(gateway)
        if gateway in self.hung:
            self.go_on.wait(20)
            raise GatewayError("timeout", "it hung")
        return self.fakes[gateway].read(gateway=gateway, admin_url=admin_url, timeout_s=timeout_s, models=models)


class World:
    """Models, each with a rollout, in environments with a gateway each."""

    def __init__(
        self, *, models: int = 1, environments: int = 1, engine: dict[str, Any] | None = None, **policy: Any
    ) -> None:
        self.admin = make_admin()
        self.gateways = Gateways()
        self.engine = self.new_engine(**engine or {})
        self.rollouts: list[Rollout] = []
        for index in range(environments):
            environment = make_environment(f"place-{index}", needs_passed_report=False)
            Gateway.objects.create(
                environment=environment,
                name=f"gateway-{index}",
                admin_url="",
                http_url="http://127.0.0.1:2",
                grpc_address="127.0.0.1:3",
            )
            fake = FakeGateway(f"gateway-{index}", seed=5 + index, now=self.engine.clock.now)
            self.gateways.fakes[fake.name] = fake
            for _ in range(models):
                self.rollouts.append(self._rollout(environment, policy))

    def new_engine(self, **options: Any) -> Engine:
        return Engine(self.gateways, tick_s=1.0, lease_s=60, **{"timings": AT_ONCE, **options})

    def _rollout(self, environment: Any, policy: dict[str, Any]) -> Rollout:
        model = make_model(objectives=OBJECTIVES, rollout_policy={**POLICY, **policy})
        stable, candidate = make_release(model), make_release(model)
        for release in (stable, candidate):
            make_server(make_deployment(release, environment, state="ready"))
        set_route(actor=Actor.system("test"), environment=environment, model=model, stable=stable, reason="It serves.")
        return actions.start_rollout(actor=self.admin, candidate=candidate, environment=environment)

    def traffic(self, requests: int = 60) -> None:
        for rollout in self.rollouts:
            self.fake_of(rollout).traffic(requests, rollout.model.slug)

    def fake_of(self, rollout: Rollout) -> FakeGateway:
        name = Gateway.objects.get(environment=rollout.environment).name
        return self.gateways.fakes[name]

    def obey(self) -> None:
        for fake in self.gateways.fakes.values():
            fake.obey()

    def turn(self, requests: int = 60) -> None:
        self.obey()
        self.traffic(requests)
        self.engine.step()
        for rollout in self.rollouts:
            rollout.refresh_from_db()

    def until_shifting(self) -> None:
        for _ in range(10):
            self.turn()
            self.obey()
            if all(rollout.step_started_at for rollout in self.rollouts):
                return
        raise AssertionError([(rollout.state, rollout.reason) for rollout in self.rollouts])


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback_rules, "FAILING_OVER_S", 0.0)


# -- nobody waits for a gateway ----------------------------------------------------------------------------------------


def test_a_hung_gateway_blinds_its_own_rollouts_and_delays_nobody() -> None:
    world = World(environments=2)
    world.until_shifting()
    near, far = world.rollouts
    world.gateways.hung.add("gateway-1")
    world.engine._readers.wait_s = 1.5
    took = []
    for _ in range(4):
        before = near.tick
        began = time.monotonic()
        world.turn()
        took.append(time.monotonic() - began)
        assert near.tick == before + 1
        assert "minimum" in near.reason and "gateway-1" in far.reason
    assert max(took[1:]) < 1.3, took  # the first turn waits for the answer; later ones know better
    assert world.gateways.asked.count("gateway-1") < world.gateways.asked.count("gateway-0")  # never twice at a time
    assert DecisionRecord.objects.filter(rollout=far, code="provider_down").count() == 1
    assert not DecisionRecord.objects.filter(rollout=near, code="provider_down").exists()
    assert far.weight_bp == 2500 and far.state == "shifting"
    world.gateways.hung.clear()
    world.gateways.go_on.set()
    for _ in range(4):
        time.sleep(0.1)
        world.turn()
    assert "gateway-1" not in far.reason


def test_a_slow_gateway_is_heard_a_turn_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.until_shifting()
    read = world.gateways.read

    def slowly(**asked: Any) -> Any:
        time.sleep(1.9)  # longer than a turn waits
        return read(**asked)

    monkeypatch.setattr(world.gateways, "read", slowly)
    world.engine._readers.wait_s = 1.5
    world.turn()
    assert "has not told its counters yet" in world.rollouts[0].reason
    time.sleep(1.0)
    total = EngineState.from_json(world.rollouts[0].engine_state).total.candidate.attempts
    began = time.monotonic()
    world.turn()
    assert time.monotonic() - began < 1.3
    assert "counters" not in world.rollouts[0].reason
    assert EngineState.from_json(world.rollouts[0].engine_state).total.candidate.attempts > total


def test_a_gateway_that_repeats_itself_is_stale() -> None:
    world = World(stale_s=0.2)
    world.until_shifting()
    world.turn()
    world.fake_of(world.rollouts[0]).freeze()
    time.sleep(0.3)
    world.turn()
    assert DecisionRecord.objects.filter(rollout=world.rollouts[0]).order_by("-pk")[0].code == "stale"
    world.fake_of(world.rollouts[0]).freeze(False)
    world.turn()
    assert "minimum" in world.rollouts[0].reason


@pytest.mark.parametrize("jump_s", [-7200.0, 7200.0])
def test_a_jump_of_this_hosts_clock_moves_nothing(jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.until_shifting()
    world.turn()
    (rollout,) = world.rollouts
    said, began, now, real = rollout.reason, time.time(), timezone.now, time.time
    monkeypatch.setattr(timezone, "now", lambda: now() + timedelta(seconds=jump_s))
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    monkeypatch.setattr(world, "obey", lambda: None)
    for _ in range(3):
        world.turn()
    if not world.engine.cache.known[rollout.pk].history.rows:
        world.turn()  # a block was full just now; another begins
    assert rollout.state == "shifting" and "minimum" in rollout.reason and "minimum" in said
    block = world.engine.cache.known[rollout.pk].history
    assert block.rows and abs(block.at - began) < 60
    monkeypatch.undo()
    assert DecisionRecord.objects.filter(rollout=rollout, at__gt=timezone.now() + timedelta(minutes=1)).count() == 0


# -- written together, and first things first --------------------------------------------------------------------------


def test_holds_of_many_rollouts_are_one_write(django_assert_max_num_queries: Any) -> None:
    world = World(models=6)
    world.until_shifting()
    world.turn()
    world.obey()
    world.traffic()
    with django_assert_max_num_queries(24) as seen:
        world.engine.step()
    assert sum("UPDATE rollouts_rollout" in one["sql"] for one in seen) == 1
    ticks = {rollout.pk: rollout.tick for rollout in world.rollouts}
    assert {one.pk: one.tick - 1 for one in Rollout.objects.all()} == ticks


def test_approvals_of_all_that_wait_for_one_are_read_at_once() -> None:
    step = {"weight_pct": 25, "min_s": 0, "min_samples": 40, "deadline_s": 7200}
    world = World(models=4, steps=[step], approvals={"bake": 1})
    for _ in range(30):
        world.turn(400)
        if DecisionRecord.objects.filter(code="awaiting_approval").count() == 4:
            break
    world.traffic(400)
    with CaptureQueriesContext(connection) as asked:
        world.engine.step()
    assert DecisionRecord.objects.filter(code="awaiting_approval").count() == 4  # they all go on waiting
    assert sum("rollouts_approval" in query["sql"] for query in asked.captured_queries) == 1


def test_a_rollout_that_somebody_holds_delays_no_other() -> None:
    world = World(models=3)
    world.until_shifting()
    world.turn()
    held, *others = world.rollouts
    is_held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Rollout.objects.select_for_update().get(pk=held.pk)
            is_held.set()
            let_go.wait(10)
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(10)
    before = {one.pk: one.tick for one in world.rollouts}
    began = time.monotonic()
    world.turn()
    assert time.monotonic() - began < 2.0
    assert held.tick == before[held.pk] and all(one.tick == before[one.pk] + 1 for one in others)
    let_go.set()
    thread.join()
    world.turn()
    assert held.tick == before[held.pk] + 1


def test_a_person_who_comes_between_the_look_and_the_write_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(models=2)
    world.until_shifting()
    world.turn()
    paused, other = world.rollouts
    commit = tick_records.commit_holds

    def late(holds: Any, *, fence: int) -> set[int]:
        if paused.state == "shifting":
            actions.pause(actor=world.admin, rollout=paused, expected_version=paused.version, reason="Lunch.")
            paused.refresh_from_db()
        return commit(holds, fence=fence)

    monkeypatch.setattr(tick_writer, "commit_holds", late)
    before = (paused.tick, other.tick)
    world.turn()
    assert (paused.state, paused.tick) == ("paused", before[0]) and "Lunch" in paused.reason
    assert other.tick == before[1] + 1
    world.turn()
    assert (paused.state, paused.tick) == ("paused", before[0] + 1)


def test_a_rollback_is_written_before_any_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(models=4)
    world.until_shifting()
    world.turn()
    broken = world.rollouts[-1]  # the last in every list
    world.fake_of(broken).set_arm(str(broken.candidate.digest), is_up=False)
    order: list[str] = []
    commit_tick, commit_holds = engine_module.commit_tick, tick_records.commit_holds

    def noted(rollout: Rollout, tick: Any, *, fence: int) -> Any:
        order.append(tick.decision.action.value)
        return commit_tick(rollout, tick, fence=fence)

    monkeypatch.setattr(engine_module, "commit_tick", noted)
    monkeypatch.setattr(
        tick_writer, "commit_holds", lambda holds, fence: (order.append("holds"), commit_holds(holds, fence=fence))[1]
    )
    for _ in range(4):
        world.turn()
        if broken.state == "rolling_back":
            break
    assert broken.state == "rolling_back" and Route.objects.get(model=broken.model).candidate_bp == 0
    assert order[-2:] == ["roll_back", "holds"]


def test_effects_that_do_not_fit_into_a_tick_wait_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(models=4, engine={"timings": replace(AT_ONCE, effects_share=0.0)})
    commit_tick = engine_module.commit_tick

    def slowly(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.04)
        return commit_tick(*args, **kwargs)

    monkeypatch.setattr(engine_module, "commit_tick", slowly)
    started = []
    for _ in range(6):
        world.turn()
        started.append(sum(one.state == "shifting" for one in world.rollouts))
    assert 0 < started[0] < 4 and started[-1] == 4


def test_effects_that_were_deferred_go_first_so_that_none_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(models=3, engine={"timings": replace(AT_ONCE, effects_share=0.0)})  # room for one
    done: list[int] = []

    def slowly(rollout: Rollout, tick: Any, *, fence: int) -> Any:
        done.append(rollout.pk)
        time.sleep(0.06)
        return outcome_of(tick)

    monkeypatch.setattr(engine_module, "commit_tick", slowly)  # which writes nothing: all three go on wanting theirs
    for _ in range(6):
        world.turn()
    assert set(done) == {rollout.pk for rollout in world.rollouts}


def test_a_lead_that_is_lost_within_a_turn_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(models=2)
    world.until_shifting()
    world.turn()
    evaluate = engine_module.evaluate

    def slowly(*args: Any, **kwargs: Any) -> Any:
        Lease.objects.update(token=99, owner="another", expires_at=timezone.now() + timedelta(minutes=1))
        world.engine.lead._renewed_at = 0.0  # as if a third of the lease had passed
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(engine_module, "evaluate", slowly)
    ticks = [one.tick for one in world.rollouts]
    assert not world.engine.step()
    assert world.engine.token is None
    assert [Rollout.objects.get(pk=one.pk).tick for one in world.rollouts] == ticks


# -- quiet ticks of very many rollouts ---------------------------------------------------------------------------------


#: As if there were very many rollouts.
CROWDED: dict[str, Any] = {"limits": EngineLimits(holds_a_turn=1)}


def test_quiet_ticks_of_a_crowd_are_written_in_turns_and_no_count_is_lost() -> None:
    world = World(models=4, engine=CROWDED)
    world.until_shifting()
    for _ in range(12):
        world.turn()
    behind = [world.engine.cache.known[one.pk].ahead for one in world.rollouts]
    assert 0 < max(behind) < EngineLimits().written_every and len(set(behind)) > 1
    world.engine = world.new_engine(**CROWDED)  # the first one died
    Lease.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    world.engine.step()
    for rollout in world.rollouts:
        fake, slug = world.fake_of(rollout), rollout.model.slug
        truth = fake.read(gateway="", admin_url="", timeout_s=1, models=[slug])[slug]
        state = world.engine.cache.known[rollout.pk].engine_state
        assert state.total.candidate.attempts == truth.by_release[str(rollout.candidate.digest)].decided


def test_an_engine_that_is_stopped_writes_what_it_kept() -> None:
    world = World(models=4, engine=CROWDED)
    world.until_shifting()
    for _ in range(6):
        world.turn()
    wanted = {one.pk: world.engine.cache.known[one.pk].next_tick - 1 for one in world.rollouts}
    assert any(one.tick < wanted[one.pk] for one in world.rollouts)
    world.engine.stop()
    world.engine.run()
    assert dict(Rollout.objects.values_list("pk", "tick")) == wanted
    assert Lease.objects.get(name="engine").owner == ""


def test_in_a_crowd_a_breach_is_still_written_in_its_own_tick() -> None:
    world = World(models=3, engine=CROWDED)
    world.until_shifting()
    for _ in range(3):
        world.turn()
    broken = world.rollouts[1]
    world.fake_of(broken).set_arm(str(broken.candidate.digest), is_up=False)
    world.turn()
    world.turn()
    assert broken.state == "rolling_back" and broken.zero_at is None
    assert world.engine.cache.known[broken.pk].ahead == 0


# -- blocks ------------------------------------------------------------------------------------------------------------


def blocks(rollout: Rollout) -> list[Observation]:
    return list(rollout.observations.order_by("first_tick"))


def test_ticks_are_stored_in_blocks_and_the_open_one_with_the_rollout() -> None:
    world = World()
    world.until_shifting()
    for _ in range(2 * BLOCK_ROWS + 3):
        world.turn()
    (rollout,) = world.rollouts
    stored = blocks(rollout)
    spans = [(one.first_tick, one.tick) for one in stored]
    assert all(later[0] == earlier[1] + 1 for earlier, later in pairwise(spans))
    assert max(last - first + 1 for first, last in spans) == BLOCK_ROWS
    half = OpenSegment.from_json(rollout.engine_state["history"])
    assert half.first_tick == spans[-1][1] + 1 and half.tick == rollout.tick
    summed = sum(one.candidate["attempts"] for one in stored) + half.arms.candidate.attempts
    assert summed == EngineState.from_json(rollout.engine_state).total.candidate.attempts
    assert set(stored[-1].evidence) == {"errors", "slow_250ms"} and stored[-1].state == "shifting"
    for one in stored:
        rows = list(rows_of(one.first_tick, one.from_at.timestamp(), one.ticks))
        assert sum(row.arms.stable.attempts for row in rows) == one.stable["attempts"]
        assert [row.tick for row in rows] == list(range(one.first_tick, one.tick + 1))


def test_a_new_decision_ends_a_block() -> None:
    world = World()
    world.until_shifting()
    for _ in range(3):
        world.turn()
    world.fake_of(world.rollouts[0]).fail("timeout")
    world.turn()
    world.turn()
    (rollout,) = world.rollouts
    decided = DecisionRecord.objects.filter(rollout=rollout).latest("pk")
    # the last block, unless the tick after it was that at which this rollout stores one anyway
    assert (decided.tick, "provider_down") in {(one.tick, one.problem) for one in blocks(rollout)[-2:]}


def test_old_blocks_join_into_coarser_ones_and_nothing_is_lost() -> None:
    world = World()
    world.until_shifting()
    for _ in range(8 * BLOCK_ROWS):
        world.engine.step()
        if world.engine.cache.known[world.rollouts[0].pk].rollout.tick % 7 == 0:
            world.traffic(30)
    (rollout,) = world.rollouts
    before = blocks(rollout)
    total = sum(one.stable["attempts"] for one in before)
    left = join_old_blocks(rollout, fence=world.engine.token or 0, most=4)
    after = blocks(rollout)
    assert left == len(after) == 4 < len(before)
    assert (after[0].first_tick, after[-1].tick) == (before[0].first_tick, before[-1].tick)
    assert all(later.first_tick == earlier.tick + 1 for earlier, later in pairwise(after))
    assert sum(one.stable["attempts"] for one in after) == total
    assert after[-1].pk == before[-1].pk  # the youngest stays as it was
    assert max(len(one.ticks) for one in after) <= 2 * BLOCK_ROWS + 4  # rows, and what changed between them
    world.engine.step()


def test_the_engine_joins_blocks_by_itself() -> None:
    world = World(engine={"limits": EngineLimits(most_blocks=3, blocks_over=1)})
    world.until_shifting()
    for _ in range(7 * BLOCK_ROWS):
        world.engine.step()
    assert world.rollouts[0].observations.count() <= 4


def test_an_engine_that_was_fenced_out_joins_nothing() -> None:
    world = World()
    world.until_shifting()
    with pytest.raises(Exception, match="Another engine"):
        join_old_blocks(world.rollouts[0], fence=0)


def test_reasons_that_take_turns_for_days_do_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_tick, "FREELY_RECORDED", 6)
    world = World()
    world.until_shifting()
    (rollout,) = world.rollouts
    fake = world.fake_of(rollout)
    for i in range(30):
        fake.fail("timeout" if i % 2 else None)
        world.turn()
    holds = DecisionRecord.objects.filter(rollout=rollout, action="hold")
    assert holds.count() <= 8
    assert ("gateway-0" in rollout.reason) == bool(29 % 2)  # what the row says is always the truth of now
    fake.fail(None)
    version = rollout.version
    actions.pause(actor=world.admin, rollout=rollout, expected_version=version, reason="Lunch.")
    world.turn()
    fake.set_arm(str(rollout.candidate.digest), is_up=False)
    for _ in range(3):
        world.turn()
    assert rollout.state == "rolling_back"  # effects are always on record
    assert DecisionRecord.objects.filter(rollout=rollout, action="roll_back").count() == 1


def test_a_stored_rollout_is_judged_again_as_the_engine_judged_it() -> None:
    world = World(steps=[{"weight_pct": w, "min_s": 0, "min_samples": 40, "deadline_s": 600} for w in (25, 50)])
    (rollout,) = world.rollouts
    for i in range(60):
        if i == 12:
            world.fake_of(rollout).set_arm(str(rollout.candidate.digest), error_frac=0.3)
        world.turn(200)
        if rollout.state == "rolled_back":
            break
    assert rollout.state == "rolled_back"
    told = {
        one.tick: (one.action, one.code)
        for one in DecisionRecord.objects.filter(rollout=rollout, actor=tick_records.ENGINE.name)
    }
    again = {
        walk.tick: (walk.decision.action.value, walk.decision.code.value)
        for walk in replay([block_of(one) for one in blocks(rollout)], rollout.effective_policy)
    }
    shared = sorted(set(told) & set(again))
    assert {tick: again[tick] for tick in shared} == {tick: told[tick] for tick in shared}
    assert {Action.ADVANCE.value, Action.ROLL_BACK.value} <= {told[tick][0] for tick in shared}


# -- what comes after --------------------------------------------------------------------------------------------------


def test_the_old_release_is_let_go_when_nobody_can_go_back_to_it_any_more() -> None:
    stage = {"min_s": 0, "min_samples": 40, "deadline_s": 600}
    world = World(
        engine={"timings": replace(AT_ONCE, sweep_every_s=0.0)},
        steps=[{"weight_pct": 25, **stage}],
        bake=stage,
        instant_window_s=600,
    )
    (rollout,) = world.rollouts
    for _ in range(40):
        world.turn(200)
        if rollout.state == "promoted":
            break
    assert rollout.undo_until is not None
    old = Deployment.objects.get(release=rollout.stable)
    world.turn()
    old.refresh_from_db()
    assert old.is_wanted
    Rollout.objects.filter(pk=rollout.pk).update(undo_until=timezone.now() - timedelta(seconds=1))
    world.turn()
    old.refresh_from_db()
    assert not old.is_wanted
    assert Deployment.objects.get(release=rollout.candidate).is_wanted
    events = Event.objects.count()
    world.turn()
    assert Event.objects.count() == events


def test_a_manifest_that_was_tampered_with_is_found_in_the_very_next_tick() -> None:
    world = World(models=2)
    world.until_shifting()
    broken, other = world.rollouts
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("UPDATE registry_release SET manifest = manifest || ' ' WHERE id = %s", [broken.candidate_id])
        cursor.execute("SET session_replication_role = DEFAULT")
    world.turn()
    assert broken.state == "rolling_back" and "does not match its digest" in broken.reason
    assert other.state == "shifting"


def test_a_candidate_whose_files_were_changed_under_its_server_is_taken_back() -> None:
    world = World(models=2)
    world.until_shifting()
    broken, other = world.rollouts
    found = [{"path": "1/model.onnx", "expected": "a" * 64, "found": "b" * 64}]
    Server.objects.filter(deployment__release=broken.candidate).update(drift=found)
    Server.objects.filter(deployment__release=other.stable).update(
        drift=found
    )  # an alarm, but no fault of the candidate
    world.turn()
    assert broken.state == "rolling_back" and "not those that were sealed" in broken.reason
    assert other.state == "shifting"


def test_a_glance_looks_only_at_those_that_wait_for_something() -> None:
    world = World(models=2)
    world.until_shifting()
    world.turn()
    quiet, restless = world.rollouts
    Server.objects.filter(deployment__release=restless.candidate).update(is_serving=False)
    world.turn()  # seen to be without a server
    ticks = (quiet.tick, restless.tick)
    assert world.engine.poll_pending()
    for one in world.rollouts:
        one.refresh_from_db()
    assert (quiet.tick, restless.tick) == (ticks[0], ticks[1] + 1)
    assert restless.state == "rolling_back"


def test_the_engine_tells_how_well_it_keeps_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pace = LagMetrics("one", tmp_path / "pace.json")
    began = datetime(2030, 1, 1, tzinfo=UTC)
    for second in range(61):
        lags = [0.01 * (one + 1) for one in range(10)]
        found = pace.turn(began + timedelta(seconds=second), lags, 0.2 if second < 60 else 0.9)
    assert found is not None and json.loads((tmp_path / "pace.json").read_text()) == asdict(found)
    assert (found.rollouts, found.turns) == (10, 61)
    assert (found.lag_p50_s, found.lag_p99_s, found.lag_max_s) == (0.05, 0.1, 0.1)
    assert (found.turn_p50_s, found.turn_max_s) == (0.2, 0.9)
    assert pace.turn(began + timedelta(seconds=62), [], 0.1) is None


@pytest.fixture(autouse=True)
def _nobody_hangs() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("counters-"):
            thread.join(0.1)


def test_acknowledgements_of_many_routes_are_those_of_each() -> None:
    from serving.queries.routes import acknowledged, acknowledgements

    world = World(models=2, environments=2)
    world.obey()
    first, second, *_ = Route.objects.order_by("pk")
    gateway = Gateway.objects.get(environment=first.environment)
    store.write_acks([store.AckRow(gateway.pk, second.pk, second.generation, "it cannot", timezone.now())])
    routes = list(Route.objects.all())
    Gateway.objects.filter(name="gateway-1").update(seen_at=timezone.now() - timedelta(minutes=1))
    found = acknowledgements(routes, timezone.now())
    assert {pk: replace(ack, acked_at=None) for pk, ack in found.items()} == {
        route.pk: replace(acknowledged(route), acked_at=None) for route in routes
    }
    assert found[first.pk].all_acked and not found[second.pk].all_acked
    assert "spoken" in found[routes[-1].pk].error
