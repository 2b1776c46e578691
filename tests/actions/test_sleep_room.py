"""Room for what is wanted: which of the models that may yield sleep for it, and which never do."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from ledger.core.errors import Unavailable
from ledger.models import Event
from serving.models import Node, Sleep
from serving.targets.actions.replicas import continue_placing
from serving.targets.core.sleep import LEAST_S
from tests.support.worlds.factories import resealed
from tests.support.worlds.sleep_setup import SYSTEM, Crowd, bring_up, let_go

pytestmark = pytest.mark.django_db


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


def test_the_least_recently_asked_makes_room_for_what_is_wanted(crowd: Crowd) -> None:
    with pytest.raises(Unavailable, match="No node has room"):
        crowd.ask_for_candidate()
    crowd.asked(of=crowd.one)
    crowd.later(60)
    crowd.asked(of=crowd.two)
    crowd.later(60)
    crowd.later(LEAST_S - 61)
    assert crowd.states() == ("awake", "awake")
    crowd.later(120)
    assert crowd.states() == ("asleep", "awake")
    told = Event.objects.get(verb="sleep.begun")
    assert told.reason.startswith(
        f"It makes room for {crowd.rollout.model.slug} r1 in production: nobody asked it for 419 s"
    )
    for _ in range(3):  # the room that will be there is not made twice
        crowd.later()
    crowd.gateway.obey()
    for _ in range(3):
        crowd.later()
    assert crowd.states() == ("asleep", "awake")
    let_go()
    assert crowd.ask_for_candidate().node_id == "local"
    crowd.later(LEAST_S * 10)
    assert crowd.states() == ("asleep", "awake")


def test_what_is_asked_makes_room_for_nobody(crowd: Crowd) -> None:
    for _ in range(10):
        crowd.asked(of=crowd.one)
        crowd.asked(of=crowd.two)
        crowd.later(LEAST_S / 2)
    assert crowd.states() == ("awake", "awake")


def test_a_gateway_that_does_not_tell_what_is_in_flight_makes_no_room_and_that_is_told(crowd: Crowd) -> None:
    crowd.hosts.fails = True
    for _ in range(3):
        crowd.idle()
        assert crowd.states() == ("awake", "awake")
        assert all(
            "in flight on its servers is not known" in crowd.sleep(one).trouble for one in (crowd.one, crowd.two)
        )
    crowd.hosts.fails = False
    crowd.later()
    assert sorted(crowd.states()) == ["asleep", "awake"]


def test_nobody_sleeps_where_that_would_not_help_or_is_not_allowed(crowd: Crowd) -> None:
    for one in (crowd.one, crowd.two):
        crowd.rule(one, unload_after_s=None, yields_after_s=None)
    crowd.idle(LEAST_S * 2)
    assert crowd.states() == ("awake", "awake")
    for one in (crowd.one, crowd.two):
        crowd.rule(one, unload_after_s=None, yields_after_s=LEAST_S)
    resealed(crowd.rollout.candidate, envelope={"host": {"memory_mib_min": 101}})
    crowd.idle(LEAST_S * 2)
    assert crowd.states() == ("awake", "awake")


def test_one_that_wakes_takes_the_room_of_one_that_was_asked_longer_ago(crowd: Crowd) -> None:
    crowd.idle()
    crowd.gateway.obey()
    crowd.later()
    let_go()
    crowd.ask_for_candidate()
    slept, other = (crowd.one, crowd.two) if crowd.states()[0] == "asleep" else (crowd.two, crowd.one)
    crowd.asked(of=slept)
    crowd.asked(of=other)
    crowd.later()
    assert crowd.state(slept) == "waking" and "No node has room" in crowd.sleep(slept).trouble
    crowd.later(LEAST_S - 10)
    assert crowd.state(other) == "awake"
    crowd.later(10)
    assert crowd.state(other) == "asleep" and crowd.state(slept) == "waking"
    crowd.gateway.obey()
    crowd.later()
    let_go()
    crowd.later()
    bring_up()
    crowd.later()
    assert (crowd.state(slept), crowd.state(other)) == ("awake", "asleep")
    Sleep.objects.filter(state="awake").update(state_since=crowd.now)  # by the clock that this test moves on
    crowd.asked(of=other)
    crowd.later()
    crowd.later(60)
    assert (crowd.state(slept), crowd.state(other)) == ("awake", "waking")  # one that just woke is kept


def test_what_a_dead_node_has_room_for_is_no_room(crowd: Crowd) -> None:
    local = Node.objects.get(name="local")
    long_ago = timezone.now() - timedelta(hours=5)
    Node.objects.create(name="dead", runtimes=local.runtimes, facts=local.facts, seen_at=long_ago, gpus=local.gpus)
    with pytest.raises(Unavailable, match="dead: its agent has been silent for 30 s"):
        crowd.ask_for_candidate()
    for _ in range(3):
        crowd.later(LEAST_S)
        Node.objects.filter(name="local").update(seen_at=timezone.now())
        continue_placing(actor=SYSTEM)
    assert "asleep" in crowd.states()
