"""The watch of stable's objectives, on rows and a fake gateway: alarms open and close, and people handle them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.actions.leadership import LeadershipLost
from ledger.core.errors import Invalid, Refused, Stale, StateChanged
from ledger.models import Event, Lease
from registry.models import Release
from rollouts.actions.alarms import acknowledge, close
from rollouts.actions.control import begin_control
from rollouts.core.policy_schema import parse_policy
from rollouts.core.watch.comparison import EVEN_BP
from rollouts.core.watch.lifecycle import AGAIN_WITHIN_S
from rollouts.core.watch.sequential_test import PAGE
from rollouts.core.watch.watched import Standing
from rollouts.engine.loop import LEASE
from rollouts.models import Alarm, DecisionRecord, Rollout, WatchRecord
from rollouts.queries import alarms as queries
from rollouts.queries.alarms import alarms_for, every_watched_route, objectives_now
from rollouts.watch import stable_watch
from rollouts.watch.stable_watch import StableWatch
from serving.models import Gateway, Route, Server
from serving.traffic.actions import routes
from serving.traffic.actions.routes import set_route
from tests.support.fakes.gateway import Behaviour, FakeGateway
from tests.support.rigs.engine_rig import leading
from tests.support.worlds.factories import (
    make_actor,
    make_admin,
    make_environment,
    make_model,
    make_release,
    make_replica,
    make_server,
)

pytestmark = pytest.mark.django_db
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WELL, BROKEN = Behaviour(), Behaviour(error_frac=0.5)


class World:
    """One routed model with one gateway, and a clock that goes by bins."""

    def __init__(self) -> None:
        self.at, self.lead = BEGIN, leading()
        self.environment = make_environment("production")
        self.model = make_model(objectives={"errors_max_frac": 0.01})
        Gateway.objects.create(environment=self.environment, name="gateway-1", admin_url="http://127.0.0.1:1")
        self.gateway = FakeGateway("gateway-1", seed=3, now=lambda: self.at)
        self.stable = make_release(self.model)
        self.serve(self.stable)
        self.watch = self.another_engine()

    def another_engine(self) -> StableWatch:
        return StableWatch(self.gateway, self.lead, lambda: self.at)

    def serve(self, release: Any, behaviour: Behaviour = WELL) -> None:
        actor = Actor.system("test")
        set_route(actor=actor, environment=self.environment, model=self.model, stable=release, reason="It serves.")
        self.gateway.set_route(self.model.slug, stable=str(release.digest))
        self.behave(behaviour)

    def behave(self, behaviour: Behaviour) -> None:
        self.gateway.set_arm(str(self.route.stable.digest), **asdict(behaviour))

    def obey(self) -> None:
        """The gateway takes the route as it is."""
        route = self.route
        self.gateway.set_route(
            self.model.slug, stable=str(route.stable.digest), candidate=str(route.candidate.digest) if route.candidate else None,
            candidate_bp=route.candidate_bp,
        )  # fmt: skip

    def turns(self, count: int, behaviour: Behaviour | None = None, requests: int = 200) -> None:
        if behaviour is not None:
            self.behave(behaviour)
        for _ in range(count):
            self.gateway.traffic(requests)
            self.at += timedelta(seconds=PAGE.bin_s)
            self.watch.turn()
            if Route.objects.exists():
                self.obey()

    @property
    def route(self) -> Route:
        return every_watched_route().get(model=self.model)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()
    monkeypatch.setattr(queries.clock, "now", lambda: found.at)
    monkeypatch.setattr(routes, "timezone", SimpleNamespace(now=lambda: found.at))
    return found


def test_a_broken_stable_pages_within_150_s_and_the_alarm_closes_when_it_is_well_again(world: World) -> None:
    world.turns(30)
    assert not Alarm.objects.exists()
    broken_at = world.at
    world.turns(15, BROKEN)
    page = Alarm.objects.get()
    assert (page.tier, page.objective, page.state, page.release) == ("page", "errors", "open", world.stable)
    assert page.opened_at - broken_at <= timedelta(seconds=150)
    assert abs(datetime.fromisoformat(page.facts["since"]) - broken_at) <= timedelta(seconds=60)
    opened = Event.objects.get(verb="alarm.opened")
    assert (opened.subject_id, opened.facts["model"], opened.facts["burn"]) == (
        str(page.pk),
        world.model.slug,
        page.facts["burn"],
    )
    assert f"{page.facts['bad']} of {page.facts['attempts']} errors of r1 in the last 5 min" in opened.reason
    (now,) = objectives_now(world.route)
    assert now.standing is Standing.BURNING and now.alarm == page
    world.turns(29, WELL)
    page.refresh_from_db()
    assert page.state == "open"
    world.turns(2)
    page.refresh_from_db()
    assert (page.state, page.closed_by) == ("closed", "system:watch")
    assert Event.objects.get(verb="alarm.closed").reason.startswith("r1 is within the objective again: 0 of ")


def test_a_fault_that_lasts_raises_one_alarm_of_each_tier(world: World) -> None:
    world.turns(10)
    world.turns(400, BROKEN, requests=50)
    assert sorted(Alarm.objects.values_list("tier", "state")) == [("page", "open"), ("ticket", "open")]
    assert Alarm.objects.get(tier="page").facts["burn_peak"] >= 40


def test_a_burst_raises_none(world: World) -> None:
    world.turns(10)
    world.turns(5, Behaviour(error_frac=1.0))
    world.turns(60, WELL)
    assert not Alarm.objects.exists()


def test_the_same_objective_opens_its_alarm_again_within_half_an_hour_and_a_new_one_later(world: World) -> None:
    world.turns(10)
    for pause in (10, round(AGAIN_WITHIN_S / PAGE.bin_s) + 10):
        world.turns(20, BROKEN)
        world.turns(40, WELL)
        assert set(Alarm.objects.values_list("state", flat=True)) == {"closed"}
        world.turns(pause)
    assert Alarm.objects.count() == 1 and Event.objects.filter(verb="alarm.opened").count() == 2
    world.turns(20, BROKEN)
    assert Alarm.objects.count() == 2


def test_another_stable_release_is_counted_anew_and_the_alarm_stays_until_that_is_proven_well(world: World) -> None:
    world.turns(10)
    world.turns(15, BROKEN)
    second = make_release(world.model)
    world.serve(second)
    world.turns(1)
    (now,) = objectives_now(world.route)
    assert (now.standing, now.attempts) == (Standing.BURNING, 0)
    world.turns(60)
    (now,) = objectives_now(world.route)
    assert Alarm.objects.get().state == "closed" and now.standing is Standing.MET
    assert now.bad == 0 and now.attempts > 1000


def test_a_model_without_a_route_has_no_live_alarm(world: World) -> None:
    world.turns(5)
    world.turns(15, BROKEN)
    Route.objects.all().delete()
    world.turns(1, requests=0)
    assert Alarm.objects.get().reason == f"errors of {world.model.slug} is no objective in production any more."


def test_a_gateway_that_cannot_be_read_makes_unknown_seconds_and_no_evidence(world: World) -> None:
    world.turns(12)
    world.gateway.fail("timeout")
    world.turns(80, BROKEN)
    (now,) = objectives_now(world.route)
    assert now.unknown_s >= 180 and not Alarm.objects.exists()
    world.gateway.restart()
    world.turns(1, BROKEN)
    assert not Alarm.objects.exists(), "counts that began anew are no difference"


def test_without_requests_there_is_no_data(world: World) -> None:
    world.turns(12)
    assert objectives_now(world.route)[0].standing is Standing.MET
    last = world.at
    world.turns(70, requests=0)
    (now,) = objectives_now(world.route)
    assert now.standing is Standing.NO_DATA
    assert now.asked_at is not None and abs((now.asked_at - last).total_seconds()) <= 10


def test_counts_that_nobody_wrote_lately_prove_nothing(world: World) -> None:
    world.turns(12)
    world.at += timedelta(seconds=600)
    (now,) = objectives_now(world.route)
    assert (now.standing, now.attempts, now.burn_1h) == (Standing.NOT_JUDGED, 0, None)


def test_another_engine_goes_on_from_what_was_written(world: World) -> None:
    world.turns(13)
    before = WatchRecord.objects.get().objectives["errors"]
    world.watch = world.another_engine()
    world.at += timedelta(seconds=30)
    world.turns(8)
    after = WatchRecord.objects.get().objectives["errors"]
    assert after["attempts"] > before["attempts"] and after["since"] == before["since"]
    assert 30 <= after["unknown_s"] - before["unknown_s"] <= 120


def test_an_engine_that_leads_no_longer_opens_and_writes_nothing(world: World) -> None:
    world.turns(5)
    WatchRecord.objects.all().delete()
    Lease.objects.filter(name=LEASE).update(owner="another", token=F("token") + 1)
    with pytest.raises(LeadershipLost):
        world.turns(30, BROKEN)
    assert not Alarm.objects.exists() and not WatchRecord.objects.exists()


def test_a_person_acknowledges_and_closes_with_a_reason(world: World) -> None:
    world.turns(5)
    world.turns(15, BROKEN)
    alarm, manager = Alarm.objects.get(), make_actor(Role.RELEASE_MANAGER)
    with pytest.raises(Refused):
        acknowledge(actor=make_actor(Role.VIEWER), alarm=alarm, expected_version=alarm.version, reason="I look.")
    with pytest.raises(Stale):
        acknowledge(actor=manager, alarm=alarm, expected_version=alarm.version + 1, reason="I look.")
    with pytest.raises(Invalid):
        acknowledge(actor=manager, alarm=alarm, expected_version=alarm.version, reason=" ")
    alarm = acknowledge(actor=manager, alarm=alarm, expected_version=alarm.version, reason="I look.")
    assert (alarm.state, alarm.acknowledged_by_id) == ("acknowledged", manager.user_id)
    alarm = close(actor=manager, alarm=alarm, expected_version=alarm.version, reason="Known.")
    assert (alarm.state, alarm.closed_by) == ("closed", manager.name)
    with pytest.raises(StateChanged):
        close(actor=manager, alarm=alarm, expected_version=alarm.version, reason="Again.")
    verbs = Event.objects.filter(subject_type="alarm").order_by("seq").values_list("verb", flat=True)
    assert list(verbs) == ["alarm.opened", "alarm.acknowledged", "alarm.closed"]
    world.turns(15)
    alarm.refresh_from_db()
    assert alarm.state == "open", "it burns on, so the watch opens it again"


def test_alarms_are_those_of_models_that_one_may_read(world: World) -> None:
    world.turns(5)
    world.turns(15, BROKEN)
    assert alarms_for(make_admin(), is_live=True).count() == 1
    assert alarms_for(make_admin(), is_live=False).count() == 0
    assert not alarms_for(make_actor(Role.VIEWER, team="another")).exists()


# --- the control ------------------------------------------------------------------------------------------------------


def promote(world: World, *, roll_back: str = "undo_window") -> tuple[Rollout, Release]:
    """r2 was promoted over r1, which keeps 5 % as its control: (the rollout, r1)."""
    first, second = world.stable, make_release(world.model)
    make_server(make_replica(first, world.environment, state="ready"))
    policy = parse_policy({"watch": {"control_pct": 5, "roll_back": roll_back}}, world.model.objectives)
    rollout = Rollout.objects.create(
        model=world.model, environment=world.environment, candidate=second, stable=first, policy=policy.document,
        policy_digest=policy.digest, state="promoted", undo_until=timezone.now() + timedelta(hours=1), ended_at=timezone.now(),
    )  # fmt: skip
    world.serve(second)
    begin_control(rollout, policy.control, actor=Actor.system("test"), fence=0)
    world.obey()
    world.turns(3)
    return rollout, first


def test_a_promoted_release_that_is_worse_than_its_control_is_taken_back(world: World) -> None:
    rollout, first = promote(world)
    assert (world.route.candidate, world.route.candidate_bp) == (first, 500)
    broken_at = world.at
    world.turns(35, BROKEN)
    rollout.refresh_from_db()
    assert rollout.state == "reverted"
    assert (world.route.stable, world.route.candidate) == (first, None)
    assert Alarm.objects.get().opened_at - broken_at <= timedelta(seconds=150)
    reverted = Event.objects.get(verb="rollout.reverted")
    assert reverted.actor == "system:watch" and "r2 is worse than its control r1: " in reverted.reason
    assert DecisionRecord.objects.get(action="roll_back").code == "worse_than_stable"


def test_a_fault_that_shows_under_the_larger_load_alone_takes_nothing_back(world: World) -> None:
    """A dependency of both turns slow: the queue of the release with 95 % of the traffic grows, and the control's does not."""
    rollout, first = promote(world)
    for _ in range(60):
        busy = world.route.candidate_bp == 500
        world.turns(1, BROKEN if busy else WELL)
    rollout.refresh_from_db()
    assert rollout.state == "promoted" and (world.route.candidate, world.route.candidate_bp) == (first, 500)
    reasons = list(Event.objects.filter(verb="route.set").order_by("seq").values_list("reason", flat=True))
    assert reasons[-2].endswith("Both get half, to compare them.")
    assert reasons[-1] == "Under equal load neither release is proven to be worse."


def test_where_the_control_is_as_bad_there_is_an_alarm_and_no_rollback(world: World) -> None:
    rollout, first = promote(world)
    world.gateway.set_arm(str(first.digest), error_frac=0.5)
    world.turns(120, BROKEN)
    rollout.refresh_from_db()
    assert rollout.state == "promoted" and Alarm.objects.filter(tier="page", state="open").exists()


@pytest.mark.parametrize(
    "case", ["the policy rolls nothing back", "the control has no server", "another rollout has begun"]
)
def test_an_alarm_is_all_where(case: str, world: World) -> None:
    rollout, first = promote(world, roll_back="never" if case.startswith("the policy") else "undo_window")
    if case.startswith("the control"):
        Server.objects.filter(replica__release=first).update(ended_at=timezone.now(), is_serving=False)
    elif case.startswith("another"):
        Rollout.objects.create(
            model=rollout.model, environment=rollout.environment, candidate=make_release(rollout.model), stable=rollout.candidate,
            policy=rollout.policy, policy_digest=rollout.policy_digest, state="preparing",
        )  # fmt: skip
    world.turns(25, BROKEN)
    rollout.refresh_from_db()
    assert rollout.state == "promoted" and Alarm.objects.filter(tier="page", state="open").exists()


def in_a_look(world: World) -> tuple[Rollout, Release]:
    rollout, first = promote(world)
    for _ in range(40):
        world.turns(1, BROKEN)
        if world.route.candidate_bp == EVEN_BP:
            return rollout, first
    raise AssertionError("no look began")


@pytest.mark.parametrize("trouble", ["the control dies", "the gateway is not read", "another rollout waits"])
def test_a_look_ends_in_three_minutes_whatever_happens(world: World, trouble: str) -> None:
    rollout, first = in_a_look(world)
    if trouble == "the control dies":
        Server.objects.filter(replica__release=first).update(ended_at=timezone.now(), is_serving=False)
    elif trouble == "the gateway is not read":
        world.gateway.fail("timeout")
    else:
        Rollout.objects.create(
            model=rollout.model, environment=rollout.environment, candidate=make_release(rollout.model), stable=rollout.candidate,
            policy=rollout.policy, policy_digest=rollout.policy_digest, state="awaiting_approval",
        )  # fmt: skip
    world.turns(20, BROKEN)
    rollout.refresh_from_db()
    assert (rollout.state, world.route.candidate_bp) == ("promoted", 500)


def test_the_watch_leaves_another_rollouts_route_alone(world: World) -> None:
    """An ordinary rollout of the release before has the same arms as the control."""
    rollout, first = promote(world)
    Rollout.objects.create(
        model=rollout.model, environment=rollout.environment, candidate=first, stable=rollout.candidate, policy=rollout.policy,
        policy_digest=rollout.policy_digest, state="shifting", weight_bp=500,
    )  # fmt: skip
    world.turns(40, BROKEN)
    assert (world.route.candidate, world.route.candidate_bp) == (first, 500)
    assert Alarm.objects.filter(tier="page", state="open").exists()


def test_a_model_whose_policy_cannot_be_judged_costs_no_other_its_alarm(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_model("other", objectives={"errors_max_frac": 0.01})
    set_route(
        actor=Actor.system("test"), environment=world.environment, model=other, stable=make_release(other), reason="So."
    )
    judged = stable_watch.readable_objectives

    def fails(model: Any) -> Any:
        if model.slug == "other":
            raise ZeroDivisionError
        return judged(model)

    monkeypatch.setattr(stable_watch, "readable_objectives", fails)
    world.turns(5)
    world.turns(15, BROKEN)
    assert Alarm.objects.get(tier="page").model == world.model
    assert WatchRecord.objects.filter(model=world.model).exists()


def test_a_dead_gateway_beside_a_living_one_hides_no_alarm(world: World) -> None:
    Gateway.objects.create(environment=world.environment, name="dead", admin_url="http://127.0.0.1:2")
    world.gateway.silent.add("dead")
    world.turns(5)
    world.turns(15, BROKEN)
    assert Alarm.objects.filter(tier="page", state="open").exists()
    assert objectives_now(world.route)[0].unknown_s > 0


def test_an_alarm_whose_policy_cannot_be_read_today_stays(world: World) -> None:
    world.turns(5)
    world.turns(15, BROKEN)
    type(world.model).objects.filter(pk=world.model.pk).update(rollout_policy={"preset": "no such preset"})
    world.watch = world.another_engine()
    world.turns(3, BROKEN)
    assert Alarm.objects.get(tier="page").state == "open"
