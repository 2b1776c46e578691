"""A server that is not wanted any more stays until every gateway has left it, and what was in flight is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

import pytest
from django import db

from ledger.queries import clock as database_clock
from registry.models import Release, ServedModel
from serving.environments.core.sleep_lifecycle import SleepState
from serving.models import Environment, Gateway, Node, Route, Sleep
from serving.targets import actions
from serving.targets.agent import leaving
from serving.traffic.control_plane import store
from serving.traffic.core.gateway_standing import GONE_AFTER_S
from serving.traffic.queries.gateways import not_following
from tests.support.worlds.factories import make_model, make_release
from tests.support.worlds.replica_setup import (  # noqa: F401 - fixtures are named as they are used
    QUICK,
    SYSTEM,
    Clock,
    S,
    World,
    clock,
    ensure,
    model,
    node,
    production,
    release,
    sealed,
)

# ruff: noqa: F811
pytestmark = pytest.mark.django_db
FOLLOW_S, DRAIN_S = 30.0, 2.0


@pytest.fixture
def world(
    release: Release, production: Environment, node: Node, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> World:
    """A server that users reach, and gets no more requests from now on."""
    monkeypatch.setattr(leaving, "time", clock)
    made = World(release, production, clock, replace(QUICK, follow=FOLLOW_S, drain=DRAIN_S))
    made.until(S.READY)
    return made


def gateway(environment: Environment, name: str = "gateway-1", *, heard_s_ago: float | None = 0.0) -> Gateway:
    seen_at = None if heard_s_ago is None else database_clock.now() - timedelta(seconds=heard_s_ago)
    return Gateway.objects.create(
        environment=environment, name=name, admin_url="http://127.0.0.1:1", http_url="http://127.0.0.1:2",
        grpc_address="127.0.0.1:3", seen_at=seen_at,
    )  # fmt: skip


def follow(*gateways: Gateway) -> None:
    """They have taken what the database says now."""
    store.write_follows({one.pk: database_clock.now() for one in gateways})


def leave(world: World) -> None:
    actions.drain_replica(actor=SYSTEM, replica=world.row, reason="another is enough", is_spare=True)
    world.until(S.DRAINING)


def turn(world: World, until: Callable[[], bool] = lambda: False, *, most_s: float) -> float:
    """Turns the agent until it is so, or the replica is gone, or this time is over; how long that took."""
    began = world.clock.now
    while not until() and world.state != S.GONE and world.clock.now - began < most_s:
        world.clock.sleep(world.reconciler.step() or 0.0)
    return world.clock.now - began


def is_there(world: World) -> bool:
    return bool(world.launcher.running)


def test_it_stays_until_the_last_gateway_follows_and_then_for_what_is_in_flight(
    world: World, production: Environment
) -> None:
    first, second = gateway(production), gateway(production, "gateway-2")
    follow(first, second)  # of before
    leave(world)
    turn(world, most_s=5)
    assert is_there(world) and world.state == S.DRAINING
    follow(first)
    turn(world, most_s=5)
    assert is_there(world)
    follow(second)
    assert DRAIN_S <= turn(world, most_s=60) < DRAIN_S + 1
    assert world.state == S.GONE and not is_there(world) and world.row.reason == "another is enough"


def test_a_gateway_that_never_says_so_is_waited_for_no_longer_and_is_named(
    world: World, production: Environment
) -> None:
    follow(gateway(production))
    gateway(production, "gateway-2", heard_s_ago=GONE_AFTER_S / 2)  # it may serve users by what it heard last
    leave(world)
    assert FOLLOW_S + DRAIN_S <= turn(world, most_s=600) < FOLLOW_S + DRAIN_S + 1
    assert world.state == S.GONE
    assert world.row.reason == "another is enough (gateway-1, gateway-2: not known after 30 s to have left it)"


@pytest.mark.parametrize("heard_s_ago", [None, GONE_AFTER_S + 60], ids=["never_heard_of", "taken_for_gone"])
def test_a_gateway_that_serves_nobody_is_not_waited_for(
    world: World, production: Environment, heard_s_ago: float | None
) -> None:
    gateway(production, heard_s_ago=heard_s_ago)
    gateway(Environment.objects.create(slug="elsewhere", title="Elsewhere"), "gateway-2")
    leave(world)
    assert turn(world, most_s=600) < DRAIN_S + 1
    assert world.state == S.GONE and world.row.reason == "another is enough"


def test_a_gateway_that_cannot_take_the_models_route_is_not_known_to_have_left_it(
    world: World, production: Environment, model: ServedModel
) -> None:
    one = gateway(production)
    place = {"environment": production, "generation": 7, "changed_at": database_clock.now()}
    route = Route.objects.create(model=model, stable=make_release(model), **place)
    other = Route.objects.create(model=make_model(), stable=make_release(), **place)
    store.write_acks([store.AckRow(one.pk, other.pk, 7, "it cannot", database_clock.now())])
    leave(world)
    world.reconciler.step()
    follow(one)
    assert not_following(production.pk, model.pk, database_clock.now() - timedelta(seconds=1)) == []
    store.write_acks([store.AckRow(one.pk, route.pk, 7, "it cannot", database_clock.now())])
    assert turn(world, most_s=600) >= FOLLOW_S
    assert "(gateway-1: not known" in world.row.reason


def test_a_model_that_sleeps_is_unloaded_at_once(world: World, production: Environment, model: ServedModel) -> None:
    """Its gateways had said that they answer for it, before."""
    gateway(production)
    Sleep.objects.create(environment=production, model=model, state=SleepState.ASLEEP)
    leave(world)
    assert turn(world, most_s=600) < DRAIN_S + 1
    assert world.state == S.GONE


def test_a_model_that_wakes_is_routed_and_waited_for(world: World, production: Environment, model: ServedModel) -> None:
    gateway(production)
    Sleep.objects.create(environment=production, model=model, state=SleepState.WAKING)
    leave(world)
    assert turn(world, most_s=600) >= FOLLOW_S


def test_the_time_begins_anew_once_the_database_is_there_again(
    world: World, production: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway(production)
    leave(world)
    with monkeypatch.context() as patch:
        patch.setattr(leaving, "not_following", Mock(side_effect=db.OperationalError("it is away")))
        for _ in range(60):
            with pytest.raises(db.OperationalError):
                world.reconciler.step()
            world.clock.sleep(1)
    assert turn(world, most_s=600) >= FOLLOW_S - 1


def test_a_database_clock_that_was_set_back_proves_nothing(production: Environment, model: ServedModel) -> None:
    one = gateway(production)
    now = database_clock.now()
    store.write_follows({one.pk: now + timedelta(minutes=5)})
    assert not_following(production.pk, model.pk, now) == ["gateway-1"]


def test_an_environment_that_nobody_routes_to_any_more_is_not_waited_for(world: World, production: Environment) -> None:
    gateway(production)
    leave(world)
    Environment.objects.filter(pk=production.pk).update(retired_at=database_clock.now())
    assert turn(world, most_s=600) < DRAIN_S + 1
    assert world.state == S.GONE


def test_what_never_answered_goes_at_once(
    production: Environment, model: ServedModel, node: Node, clock: Clock
) -> None:
    new = World(sealed(model), production, clock, QUICK)
    gateway(production)
    actions.drain_replica(actor=SYSTEM, replica=new.row, reason="never mind")
    assert turn(new, most_s=60) < 1 and new.state == S.GONE


def test_an_agent_that_comes_back_waits_too(world: World, production: Environment) -> None:
    one = gateway(production)
    leave(world)
    world.reconciler = world.new_reconciler()
    follow(one)  # before the new agent looks: it cannot know whether that was after the server was left
    turn(world, most_s=5)
    assert is_there(world)
    follow(one)
    turn(world, most_s=60)
    assert world.state == S.GONE and not is_there(world)


def test_how_far_a_gateway_is_never_goes_back(production: Environment) -> None:
    one, two = gateway(production), gateway(production, "gateway-2")
    now = database_clock.now()
    store.write_follows({one.pk: now, two.pk: now - timedelta(seconds=5)})
    store.write_follows({one.pk: now - timedelta(seconds=1), two.pk: now - timedelta(seconds=1)})
    said = dict(Gateway.objects.values_list("name", "follows_at"))
    assert said == {"gateway-1": now, "gateway-2": now - timedelta(seconds=1)}
    store.write_follows({})


def test_a_reading_tells_up_to_when_it_knows(world: World) -> None:
    before = database_clock.now()
    loaded = store.load()
    assert before <= loaded.read_at["production"] <= database_clock.now()
