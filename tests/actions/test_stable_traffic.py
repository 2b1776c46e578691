"""The engine counts the traffic of every routed model and keeps the counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from accounts.core.access import Actor
from ledger.actions.leadership import LeadershipLost
from ledger.models import Lease
from rollouts.core.recent_traffic import RecentTraffic
from rollouts.engine import stable_traffic
from rollouts.engine.loop import LEASE
from rollouts.engine.stable_traffic import StableTraffic
from rollouts.models import TrafficRecord as Row
from rollouts.queries.gateway_reads import is_read
from rollouts.queries.traffic import lately_of, traffic_of
from serving.models import Gateway, Route
from serving.ports import GatewayError
from serving.traffic.actions.routes import set_route
from tests.support.fakes.gateway import FakeGateway
from tests.support.rigs.engine_rig import leading
from tests.support.worlds.factories import make_environment, make_model, make_release

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
pytestmark = pytest.mark.django_db


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> tuple[StableTraffic, FakeGateway]:
    environment, model = make_environment("production"), make_model()
    Gateway.objects.create(
        environment=environment, name="gateway-1", admin_url="http://127.0.0.1:1", http_url="http://127.0.0.1:2",
        grpc_address="127.0.0.1:3",
    )  # fmt: skip
    stable = make_release(model)
    set_route(actor=Actor.system("test"), environment=environment, model=model, stable=stable, reason="It serves.")
    seconds = count()  # each look at the clock is a second later
    gateway = FakeGateway("gateway-1", seed=3, now=lambda: BEGIN + timedelta(seconds=next(seconds)))
    gateway.set_route(model.slug, stable=str(stable.digest))
    monkeypatch.setattr(stable_traffic, "WRITE_EVERY_S", 1.0)
    return StableTraffic(gateway, leading()), gateway


def turns(tests: StableTraffic, gateway: FakeGateway, count: int, *, begin: float = 100.0) -> None:
    for i in range(count):
        gateway.traffic(20)
        tests.turn(begin + i)


def test_every_routed_model_is_watched_without_any_rollout(world: tuple[StableTraffic, FakeGateway]) -> None:
    tests, gateway = world
    turns(tests, gateway, 30)
    row = Row.objects.get()
    assert row.state["error_frac"] is not None
    assert row.state["rate_per_s"] == pytest.approx(20, rel=0.2)
    assert traffic_of(row.model, row.environment).source == "gateways"


def test_gateways_that_are_off_do_not_make_those_of_another_environment_unread(
    world: tuple[StableTraffic, FakeGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway on a machine that is off takes a whole time-out. With five of them, everything looked unread."""
    tests, gateway = world
    route = Route.objects.get()
    for i in range(5):
        off = make_environment(f"site-{i}")
        Gateway.objects.create(environment=off, name=f"off-{i}", admin_url="http://127.0.0.1:1")
        set_route(actor=Actor.system("test"), environment=off, model=route.model, stable=route.stable, reason="So.")
    instant, read = [timezone.now()], gateway.read

    def reads(*, gateway: str, **asked: Any) -> Any:
        if gateway.startswith("off"):
            instant[0] += timedelta(seconds=stable_traffic.READ_TIMEOUT_S)
            raise GatewayError("unreachable", "it is off")
        return {key: replace(one, read_at=instant[0]) for key, one in read(gateway=gateway, **asked).items()}

    monkeypatch.setattr(gateway, "read", reads)
    monkeypatch.setattr(stable_traffic.timezone, "now", lambda: instant[0])
    turns(tests, gateway, 3)
    row = Row.objects.get(environment=route.environment)
    counted_s = RecentTraffic.from_json(row.traffic).counted_s
    assert counted_s and is_read(datetime.fromtimestamp(counted_s, UTC), row.at, row.at)


def test_nothing_is_written_once_another_engine_leads(world: tuple[StableTraffic, FakeGateway]) -> None:
    tests, gateway = world
    Lease.objects.filter(name=LEASE).update(owner="another", token=F("token") + 1)
    with pytest.raises(LeadershipLost):
        turns(tests, gateway, 30)
    assert not Row.objects.exists()


def test_another_engine_goes_on_from_what_was_kept(world: tuple[StableTraffic, FakeGateway]) -> None:
    tests, gateway = world
    turns(tests, gateway, 30)
    kept = Row.objects.get().state
    other = StableTraffic(gateway, leading())
    turns(other, gateway, 1, begin=500.0)
    (one,) = other._watched.values()
    assert one.to_json() == kept and one.rate_per_s


def test_a_gateway_that_does_not_answer_makes_no_second(world: tuple[StableTraffic, FakeGateway]) -> None:
    tests, gateway = world
    turns(tests, gateway, 5)
    before = Row.objects.get()
    gateway.fail("timeout")
    turns(tests, gateway, 10, begin=200.0)
    after = Row.objects.get()
    assert (after.state, after.traffic) == (before.state, before.traffic)


def test_many_models_take_turns(world: tuple[StableTraffic, FakeGateway], monkeypatch: pytest.MonkeyPatch) -> None:
    tests, _ = world
    environment = Gateway.objects.get().environment
    for slug in ("second", "third"):
        model = make_model(slug)
        set_route(
            actor=Actor.system("test"),
            environment=environment,
            model=model,
            stable=make_release(model),
            reason="It serves.",
        )
    monkeypatch.setattr(stable_traffic, "AT_ONCE", 2)
    seen = set()
    for episode in range(3):
        tests._looked_at = 0.0
        tests.turn(episode * stable_traffic.TURN_S + 1000)
        seen |= {one.model for one in tests._watched.values()}
        assert len(tests._watched) == 2
    assert len(seen) == 3


def test_the_last_hour_is_kept_minute_by_minute(world: tuple[StableTraffic, FakeGateway]) -> None:
    tests, gateway = world
    turns(tests, gateway, 130)
    row = Row.objects.get()
    hour = lately_of([row.model], row.at)
    assert list(hour) == [(row.environment_id, row.model_id)]
    kept = RecentTraffic.from_json(row.traffic).minutes
    assert len(kept) >= 2 and sum(one.requests for one in kept) == pytest.approx(129 * 20, rel=0.1)
    assert all(one.p99_us for one in kept[:-1])
    turns(StableTraffic(gateway, leading()), gateway, 10, begin=900.0)  # another engine goes on from it
    after = RecentTraffic.from_json(Row.objects.get().traffic).minutes
    assert {one.at for one in kept} <= {one.at for one in after}


def test_traffic_that_fails_is_written_at_once_and_what_is_shed_is_no_failure(
    world: tuple[StableTraffic, FakeGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stable_traffic, "WRITE_EVERY_S", 1000.0)
    tests, gateway = world
    tests._written_at = 99.0
    turns(tests, gateway, 10)
    assert not Row.objects.exists()  # nothing fails, so nothing is urgent
    (one,) = tests._watched.values()
    gateway.set_arm(one.stable, error_frac=1.0)
    turns(tests, gateway, 10, begin=110.0)
    row = Row.objects.get()
    now = RecentTraffic.from_json(row.traffic).now(row.at.timestamp()) or RecentTraffic.from_json(row.traffic).spans[-1]
    assert now.errors and not now.shed
    gateway.set_arm(one.stable, error_frac=0.0, shed_frac=1.0)
    turns(tests, gateway, 30, begin=120.0)
    last = RecentTraffic.from_json(Row.objects.get().traffic).spans[-1]
    assert (last.errors, last.shed) == (0, last.requests) and last.requests


def test_gateways_that_cannot_be_read_are_written_at_once_with_when_they_last_were(
    world: tuple[StableTraffic, FakeGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    tests, gateway = world
    turns(tests, gateway, 5)
    monkeypatch.setattr(stable_traffic, "WRITE_EVERY_S", 1000.0)
    before = Row.objects.get()
    gateway.fail("timeout")
    turns(tests, gateway, 4, begin=105.0)
    after = Row.objects.get()
    assert after.at > before.at and after.traffic == before.traffic
