"""Instants that another process counts from are the database's, whatever the clock of the host that writes them says."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from ledger.queries import clock
from ledger.queries.clock import DatabaseClock
from rollouts import actions
from serving.traffic.actions.routes import set_route
from serving.traffic.control_plane import plane as plane_module
from serving.traffic.control_plane import store
from serving.traffic.control_plane.received import StreamAck
from serving.traffic.control_plane.server import GatewayIdentity
from serving.traffic.queries.routes import acknowledged
from tests.support.worlds.factories import make_admin
from tests.support.worlds.rollout_setup import started, with_stable

pytestmark = pytest.mark.django_db(transaction=True)
REAL_NOW = timezone.now


@pytest.fixture(params=[-1, 1], ids=["an_hour_behind", "an_hour_ahead"], autouse=True)
def wrong(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This host's clock is an hour off."""
    monkeypatch.setattr(timezone, "now", lambda: REAL_NOW() + timedelta(hours=request.param))


def assert_true(at: object) -> None:
    assert abs((at - REAL_NOW()).total_seconds()) < 30  # type: ignore[operator]


def test_the_database_is_asked_and_the_time_goes_on_from_there() -> None:
    assert_true(clock.now())
    mine = DatabaseClock()
    assert abs((mine.now() - REAL_NOW()).total_seconds()) > 3000  # not asked yet
    first = mine.sync()
    assert_true(first)
    assert first <= mine.now()
    assert abs(abs(mine.ahead_s) - 3600) < 30


def test_people_start_resume_and_abort_by_the_databases_time() -> None:
    assert_true(started().started_at)
    rollout, _ = with_stable()
    admin = make_admin()

    def verb(name: str) -> None:
        getattr(actions, name)(actor=admin, rollout=rollout, expected_version=rollout.version, reason="A hunch.")
        rollout.refresh_from_db()

    rollout.__class__.objects.filter(pk=rollout.pk).update(step_started_at=REAL_NOW() - timedelta(minutes=5))
    rollout.refresh_from_db()
    verb("pause")
    verb("resume")
    assert_true(rollout.step_started_at)
    verb("abort")
    assert_true(rollout.decided_at)


def test_what_gateways_say_is_dated_by_the_databases_time() -> None:
    from tests.support.worlds.routing_setup import World  # the smallest world with a gateway and routes

    world = World()
    route = set_route(
        actor=make_admin(), environment=world.environment, model=world.model, stable=world.r1, reason="It serves."
    )
    plane = plane_module.ControlPlane()
    plane._load()
    plane.record_acks(
        GatewayIdentity(world.gateway.pk, "gateway-1", "production", ()), [StreamAck(route.pk, route.generation, "")]
    )
    (row,) = plane._acks.values()
    assert_true(row.at)
    store.write_acks([row])
    store.write_seen([world.gateway.pk], plane._clock.now())
    ack = acknowledged(route)
    assert ack.all_acked
    assert_true(ack.acked_at)
