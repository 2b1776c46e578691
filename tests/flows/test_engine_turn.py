"""A turn over many rollouts: what is written together, first or later, what never grows, and what comes after."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from ledger.models import Event, Lease
from rollouts import actions
from rollouts.actions import tick_records
from rollouts.core.tick import outcome_of
from rollouts.engine import loop as engine_module
from rollouts.engine import tick_writer
from rollouts.engine.timings import EngineLimits
from rollouts.models import DecisionRecord, Rollout
from serving.models import Gateway, Replica, Route, Server
from serving.traffic.control_plane import store
from tests.support.rigs.engine_rig import _no_waiting  # noqa: F401 - one moment with failures is proof
from tests.support.worlds.rollout_crowd import AT_ONCE, World

pytestmark = pytest.mark.django_db(transaction=True)


class Clock:
    """The clock by which the engine measures its turns; it moves when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_s = time.monotonic()
        monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: self.at_s, sleep=self.go_on))

    def go_on(self, seconds: float) -> None:
        self.at_s += seconds


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
            let_go.wait(120)
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(60)
    before = {one.pk: one.tick for one in world.rollouts}
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '100s'")  # whoever waits for a lock waits long
    began = time.monotonic()
    world.turn()
    assert time.monotonic() - began < 25.0
    assert held.tick == before[held.pk] and all(one.tick == before[one.pk] + 1 for one in others)
    let_go.set()
    thread.join()
    connection.close()
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


def test_servers_ahead_of_a_weight_are_asked_for_last_and_do_not_hold_up_the_next_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(models=3)
    world.until_shifting()
    broken = world.rollouts[-1]
    world.fake_of(broken).set_arm(str(broken.candidate.digest), is_up=False)
    clock, order = Clock(monkeypatch), []

    def slow(entry: Any, _: Any) -> None:
        order.append(str(entry.rollout.state))
        clock.go_on(5.0)  # of a tick that lasts one

    monkeypatch.setattr(engine_module, "ensure_replicas", slow)
    world.engine.timings = replace(world.engine.timings, effects_share=0.4)
    for _ in range(4):
        order.clear()
        world.turn()
        assert len(order) == 1
        if broken.state == "rolling_back":
            break
    assert order == ["rolling_back"]  # a suspect is looked at first, and was written before anything was asked for


def test_what_opens_looks_closer_only_once_every_rollback_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.until_shifting()
    (broken,) = world.rollouts
    world.rollouts.append(opening := world._rollout(broken.environment, {}))
    world.fake_of(broken).set_arm(str(broken.candidate.digest), is_up=False)
    order: list[str] = []
    commit_tick = engine_module.commit_tick

    def noted(rollout: Rollout, tick: Any, *, fence: int) -> Any:
        order.append(tick.decision.action.value)
        return commit_tick(rollout, tick, fence=fence)

    def without_servers(entry: Any, given: Any) -> Any:
        order.append("look")
        headroom = replace(given.observed.headroom, wanted=10_000, candidate=0)
        return replace(given, observed=replace(given.observed, headroom=headroom))

    monkeypatch.setattr(engine_module, "commit_tick", noted)
    monkeypatch.setattr(engine_module, "looked_closer", without_servers)
    monkeypatch.setattr(engine_module, "_suspects_first", lambda entry: -entry.rollout.pk)
    for _ in range(6):
        order.clear()
        world.turn()
        if broken.state == "rolling_back":
            break
    assert order == ["roll_back", "look"]
    assert opening.state == "preparing"
    assert DecisionRecord.objects.filter(rollout=opening, code="needs_replicas").count() == 1


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
    commit_tick, clock = engine_module.commit_tick, Clock(monkeypatch)

    def slowly(*args: Any, **kwargs: Any) -> Any:
        clock.go_on(0.04)
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
    clock = Clock(monkeypatch)

    def slowly(rollout: Rollout, tick: Any, *, fence: int) -> Any:
        done.append(rollout.pk)
        clock.go_on(0.06)
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
        world.engine.lead._renewed_at -= 3600  # as if a third of the lease had passed
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


# -- what comes after --------------------------------------------------------------------------------------------------


def test_the_old_release_is_let_go_when_nobody_can_go_back_to_it_any_more() -> None:
    stage = {"min_s": 0, "min_samples": 40, "deadline_s": 600}
    world = World(
        engine={"timings": replace(AT_ONCE, sweep_every_s=0.0)},
        steps=[{"weight_pct": 25, **stage}],
        bake=stage,
        instant_window_s=600,
        undo_max_s=0,
    )
    (rollout,) = world.rollouts
    for _ in range(40):
        world.turn(200)
        if rollout.state == "promoted":
            break
    assert rollout.undo_until is not None
    old = Replica.objects.get(release=rollout.stable)
    world.turn()
    old.refresh_from_db()
    assert old.is_wanted
    Rollout.objects.filter(pk=rollout.pk).update(undo_until=timezone.now() - timedelta(seconds=1))
    world.turn()
    old.refresh_from_db()
    assert not old.is_wanted
    assert Replica.objects.get(release=rollout.candidate).is_wanted
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


def test_a_candidate_whose_files_were_changed_under_its_server_is_rolled_back_in() -> None:
    world = World(models=2)
    world.until_shifting()
    broken, other = world.rollouts
    found = [{"path": "1/model.onnx", "expected": "a" * 64, "found": "b" * 64}]
    Server.objects.filter(replica__release=broken.candidate).update(drift=found)
    Server.objects.filter(replica__release=other.stable).update(drift=found)  # an alarm, but no fault of the candidate
    world.turn()
    assert broken.state == "rolling_back" and "not those that were sealed" in broken.reason
    assert other.state == "shifting"


def test_a_glance_looks_only_at_those_that_wait_for_something() -> None:
    world = World(models=2)
    world.until_shifting()
    world.turn()
    quiet, restless = world.rollouts
    Server.objects.filter(replica__release=restless.candidate).update(is_serving=False)
    world.turn()  # seen to be without a server
    ticks = (quiet.tick, restless.tick)
    assert world.engine.poll_pending()
    for one in world.rollouts:
        one.refresh_from_db()
    assert (quiet.tick, restless.tick) == (ticks[0], ticks[1] + 1)
    assert restless.state == "rolling_back"


def test_acknowledgements_of_many_routes_are_those_of_each() -> None:
    from serving.traffic.queries.routes import acknowledged, acknowledgements

    world = World(models=2, environments=2)
    world.obey()
    first, second, *_ = Route.objects.order_by("pk")
    gateway = Gateway.objects.get(environment=first.environment)
    store.write_acks([store.AckRow(gateway.pk, second.pk, second.generation, "it cannot", timezone.now())])
    routes = list(Route.objects.order_by("pk"))
    Gateway.objects.filter(name="gateway-1").update(seen_at=timezone.now() - timedelta(minutes=1))
    found = acknowledgements(routes, timezone.now())
    assert {pk: replace(ack, acked_at=None) for pk, ack in found.items()} == {
        route.pk: replace(acknowledged(route), acked_at=None) for route in routes
    }
    assert found[first.pk].all_acked and not found[second.pk].all_acked
    assert "spoken" in found[routes[-1].pk].error
