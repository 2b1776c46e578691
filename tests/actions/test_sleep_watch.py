"""Looks at models that sleep: what one look knows of the last one, what fails in it, and how much it does."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from datetime import timedelta
from threading import Barrier, BrokenBarrierError, Event, Thread
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from structlog.testing import capture_logs

from ledger.actions.leadership import Leadership
from ledger.models import Lease
from serving.models import Gateway, Replica, Route, RouteAck, Server
from serving.ports import GatewayError
from serving.targets.actions.sleeping import put_to_sleep
from serving.targets.agent import sleep_watch
from serving.targets.agent.sleep_watch import SleepWatch
from serving.targets.core.sleep import LEAST_S, MOST_S
from serving.targets.queries.sleep import sleep_views
from serving.traffic.adapters.in_flight import InFlight
from tests.support.rigs.gateway_rig import wait_until
from tests.support.worlds.factories import make_actor
from tests.support.worlds.rollout_setup import stable_server
from tests.support.worlds.sleep_setup import Night, add_gateway, asleep, bring_up, let_go, many, night  # noqa: F401

pytestmark = pytest.mark.django_db


def by_hand(night: Night) -> None:
    actor = make_actor(team=night.model.team)
    put_to_sleep(actor=actor, model=night.model, environment=night.environment, reason="Holidays.")
    night.gateway.obey()


@pytest.mark.parametrize("has_rule", [False, True])
def test_what_was_counted_before_a_person_had_it_sleep_wakes_nobody(has_rule: bool) -> None:
    night = Night()
    if has_rule:
        night.rule()
    night.later()
    night.asked(5)
    by_hand(night)
    night.later()
    night.later()
    assert night.state() == "asleep"
    night.asked()
    night.later()
    assert night.state() == "waking"


@pytest.mark.parametrize("is_fresh", [False, True], ids=["one agent", "another agent at each look"])
def test_a_stream_that_ends_after_a_person_had_it_sleep_wakes_nobody(is_fresh: bool) -> None:
    night = Night(is_fresh=is_fresh)
    night.rule()
    night.later()
    night.hosts.active = 1  # a stream, which the gateway counts when it ends
    by_hand(night)
    night.later()
    assert night.sleep().state_by.startswith("user-") and night.replicas()
    night.hosts.active = 0
    night.ends()
    night.later()
    night.later()
    assert (night.state(), night.replicas()) == ("asleep", [])
    let_go()
    night.asked()
    night.later()
    assert (night.state(), night.sleep().state_by) == ("waking", "system:sleep-watch")


@pytest.mark.parametrize("is_new", [False, True])
def test_a_request_whose_wake_failed_is_not_forgotten(
    night: Night, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    asleep(night).asked()

    def fails(**_: Any) -> None:
        raise OperationalError("the database went away")

    with monkeypatch.context() as patch:
        patch.setattr(sleep_watch, "wake_model", fails)
        with pytest.raises(OperationalError):
            night.later()
    assert night.state() == "asleep"
    if is_new:
        night.watch = night.fresh()
    night.later()
    assert night.state() == "waking"


def test_what_fails_of_one_model_keeps_no_other(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    other = stable_server()
    night.rule(other)
    asleep(night)
    assert (night.state(), night.state(other)) == ("asleep", "asleep")
    night.asked()
    night.asked(of=other)
    wakes = sleep_watch.wake_model

    def fails(**asked: Any) -> Any:
        if asked["model"] == night.model:
            raise ValueError("a manifest that nobody can read")
        return wakes(**asked)

    monkeypatch.setattr(sleep_watch, "wake_model", fails)
    night.later()
    assert (night.state(), night.state(other)) == ("asleep", "waking")


def test_nothing_falls_asleep_by_what_was_counted_a_while_ago(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = night.hosts.read_in_flight

    def slow(**asked: Any) -> Any:
        night.now += timedelta(seconds=60)
        return reads(**asked)

    monkeypatch.setattr(night.hosts, "read_in_flight", slow)
    night.idle()
    assert night.state() == "awake"


@pytest.mark.parametrize("is_fresh", [False, True], ids=["one agent", "another agent at each look"])
def test_a_gateway_that_does_not_tell_what_is_in_flight_is_told_as_that_and_logged_once(is_fresh: bool) -> None:
    night = Night(is_fresh=is_fresh)
    night.rule()
    night.hosts.fails = True
    with capture_logs() as logged:
        night.idle()
        for _ in range(3):
            night.later()
            (view,) = sleep_views(night.model)
            assert (night.state(), view.kept_awake) == ("awake", night.sleep().trouble)
            assert view.kept_awake.endswith("is never taken for quiet: gateway-1 did not answer in time.")
    assert [one["model"] for one in logged if one["event"] == "sleep_trouble"] == [night.model.slug]
    night.hosts.fails = False
    night.later()
    assert (night.state(), night.sleep().trouble) == ("asleep", "")  # nobody asked it meanwhile


def test_who_leads_no_more_puts_nothing_to_sleep(night: Night) -> None:
    night.lead.is_leading = False  # since the look began
    night.idle()
    assert night.state() == "awake"
    night.lead.is_leading = True
    night.later()
    assert night.state() == "asleep"


@pytest.mark.django_db(transaction=True)
def test_one_of_two_agents_looks_and_hands_over_when_it_ends(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleep_watch, "EVERY_S", 0.02)
    looked: list[str] = []

    def runs(name: str) -> tuple[Event, Thread]:
        watch = SleepWatch(night.gateway, night.hosts, Leadership(sleep_watch.LEASE, name, 60.0), night.clock)
        monkeypatch.setattr(watch, "turn", lambda: looked.append(name))
        stopping = Event()
        thread = Thread(target=watch.run, args=(stopping,))
        thread.start()
        return stopping, thread

    first = runs("first")
    wait_until(lambda: looked, "the first looks")
    second = runs("second")
    wait_until(lambda: looked.count("first") > 5, "it goes on")
    assert "second" not in looked
    for stopping, thread in (first, second):
        stopping.set()
        thread.join(30)
        wait_until(lambda: "second" in looked, "the second looks")
    assert Lease.objects.get(name=sleep_watch.LEASE).owner == ""


def test_a_look_ends_in_time_and_the_next_goes_on_behind_it(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    every = [night.one, *(stable_server() for _ in range(3))]
    for one in every[1:]:
        night.rule(one)
    monkeypatch.setattr(sleep_watch, "MOST_S", dict.fromkeys(sleep_watch.MOST_S, 0.0))
    night.later()
    asleep_after = []
    for _ in every:
        night.later(LEAST_S if not asleep_after else 2.0)
        asleep_after.append([night.state(one) for one in every].count("asleep"))
    assert asleep_after == [1, 2, 3, 4]
    night.gateway.obey()
    for _ in every:
        night.later()  # their servers are drained, one model at a time
    let_go()
    for one in every:
        night.asked(of=one)
    woken = []
    for _ in range(2 * len(every)):
        night.later()
        bring_up()
        woken.append([night.state(one) for one in every].count("asleep"))
    assert woken[-1] == 0, "a request of one that no look came to in time is not forgotten"
    assert Replica.objects.filter(is_wanted=True).count() == len(every)


def test_with_a_thousand_models_a_look_asks_each_gateway_once(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    add_gateway(night, "gateway-2")
    due = many(night, 20, unload_after_s=LEAST_S)
    monkeypatch.setattr(sleep_watch, "MOST_S", dict.fromkeys(sleep_watch.MOST_S, 600.0))
    read: list[str] = []
    reads = night.gateway.read
    monkeypatch.setattr(night.gateway, "read", lambda **asked: (read.append(asked["gateway"]), reads(**asked))[1])

    def queries_of_a_look() -> int:
        night.later()  # writes down since when nobody asked
        with CaptureQueriesContext(connection) as asked:
            night.later()
        return len(asked)

    few = queries_of_a_look()
    many(night, 1000, unload_after_s=MOST_S)
    assert queries_of_a_look() == few
    assert night.hosts.asked == [] and sorted(read) == ["gateway-1"] * 4 + ["gateway-2"] * 4
    night.later(LEAST_S)
    assert [night.state(one) for one in due] == ["asleep"] * len(due)
    assert sorted(night.hosts.asked) == ["gateway-1", "gateway-2"]
    RouteAck.objects.bulk_create(
        RouteAck(gateway=gateway, route=route, generation=route.generation, acked_at=timezone.now())
        for gateway in Gateway.objects.all()
        for route in Route.objects.filter(model__in=[one.release.model for one in due])
    )
    night.later()
    assert not Replica.objects.filter(pk__in=[one.pk for one in due], is_wanted=True).exists()
    assert sorted(night.hosts.asked) == ["gateway-1"] * 2 + ["gateway-2"] * 2 and len(read) == 12


def test_what_a_gateway_takes_while_it_is_asked_is_unloaded_at_the_next_look(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may have begun on its servers after the gateway told what is in flight, and before it answered for the model itself."""
    other = stable_server()
    night.rule(other)
    night.idle()
    route = Route.objects.get(model=night.model)
    ack = {"generation": route.generation, "acked_at": timezone.now()}
    RouteAck.objects.update_or_create(gateway=Gateway.objects.get(), route=route, defaults=ack)
    on = InFlight.on

    def told(*asked: Any) -> Any:
        found = on(*asked)
        night.gateway.obey()
        return found

    monkeypatch.setattr(InFlight, "on", told)
    night.later()
    assert night.replicas() == [] and len(night.replicas(other)) == 1
    assert "has not taken that yet" in night.sleep(other).trouble
    night.later()
    assert night.replicas(other) == []


def test_all_gateways_are_asked_at_once_what_is_in_flight(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gateway-2", "gateway-3"):
        add_gateway(night, name)
    together, reads = Barrier(3), night.hosts.read_in_flight

    def told(**asked: Any) -> Any:
        try:
            together.wait(timeout=20)
        except BrokenBarrierError:
            raise GatewayError("timeout", "they were asked one after another") from None
        return reads(**asked)

    monkeypatch.setattr(night.hosts, "read_in_flight", told)
    night.idle()
    assert (night.sleep().trouble, night.state()) == ("", "asleep")


def test_what_one_gateway_tells_and_nobody_makes_out_is_unknown(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: Any) -> Any:
        raise ValueError("no number")

    monkeypatch.setattr(night.hosts, "read_in_flight", fails)
    night.idle()
    assert night.state() == "awake" and "cannot be made out (ValueError: no number)" in night.sleep().trouble


def test_who_somebody_waits_for_comes_before_who_is_unloaded(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    last = stable_server()
    night.rule(last)
    night.idle()
    assert (night.state(), night.state(last)) == ("asleep", "asleep") and night.replicas()
    night.gateway.obey()
    Server.objects.filter(replica=last).update(is_serving=False)
    night.asked(of=last)
    night.hosts.active = 1
    seen: list[int] = []
    continues = sleep_watch.continue_waking

    def counted(**asked: Any) -> None:
        seen.append(len(night.hosts.asked))
        continues(**asked)

    monkeypatch.setattr(sleep_watch, "continue_waking", counted)
    for _ in range(2):  # as it is asked, and as it wakes
        night.hosts.asked.clear()
        night.later()
        assert night.state(last) == "waking" and night.replicas() and night.hosts.asked
    assert seen == [0, 0], "it is on its way before any gateway is waited for"
