"""Models that nobody asks fall asleep and wake when they are asked: what keeps them awake, and what is never lost on the way."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import pairwise
from threading import Barrier, Thread
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from accounts.core.access import Role
from ledger.core.errors import Invalid, Refused, Stale, StateChanged
from ledger.models import Event
from serving.environments.core.sleep_lifecycle import SleepRule
from serving.models import Replica, ReplicaTarget, Sleep
from serving.targets.actions.replicas import continue_placing
from serving.targets.actions.sleeping import put_to_sleep, rule_sleep, unload_asleep, wake_model
from serving.targets.core.sleep import LEAST_S, UNKNOWN_WAKE_S
from serving.traffic.control_plane import store
from serving.traffic.core.asleep import Asleep
from serving.traffic.core.routes import admit
from tests.support.worlds.factories import make_actor, make_environment, make_model
from tests.support.worlds.rollout_setup import put, release_of, started
from tests.support.worlds.sleep_setup import (  # noqa: F401
    SYSTEM,
    Night,
    add_gateway,
    asleep,
    bring_up,
    let_go,
    night,
    scaled_by_a_person,
)

pytestmark = pytest.mark.django_db


def verbs(prefix: str = "sleep.") -> list[str]:
    return list(Event.objects.filter(verb__startswith=prefix).order_by("seq").values_list("verb", flat=True))


# --- the rule ---------------------------------------------------------------------------------------------------------


def test_a_rule_is_logged_once_and_versioned(night: Night) -> None:
    before = night.sleep()
    assert (before.rule, before.version, before.changed_by) == (SleepRule(LEAST_S), 2, "system:test")
    night.rule()
    assert verbs() == ["sleep.ruled"]
    changed = night.rule(unload_after_s=None, yields_after_s=900, loads_on_demand=False)
    assert (changed.rule, changed.version) == (SleepRule(None, 900, False), 3)
    told = Event.objects.filter(verb="sleep.ruled").latest("seq")
    assert (told.subject_id, told.facts["yields_after_s"], told.facts["before"]["unload_after_s"]) == (
        night.model.slug,
        900,
        LEAST_S,
    )


def test_who_may_say_how_many_run_may_say_when_they_sleep(night: Night) -> None:
    def ruled(**over: Any) -> Sleep:
        asked = {
            "model": night.model,
            "environment": night.environment,
            "rule": SleepRule(600),
            "actor": SYSTEM,
            **over,
        }
        return rule_sleep(**asked)

    with pytest.raises(Refused):
        ruled(actor=make_actor(Role.VIEWER, team=night.model.team))
    with pytest.raises(Invalid, match="it is from 300"):
        ruled(rule=SleepRule(10))
    with pytest.raises(Invalid, match="has no gateway"):
        ruled(environment=make_environment("staging", is_routed=False))
    with pytest.raises(Invalid, match="2001 characters"):
        ruled(reason="x" * 2001)
    with pytest.raises(Stale):
        ruled(expected_version=1)
    assert ruled(actor=make_actor(team=night.model.team), expected_version=2).rule == SleepRule(600)


# --- falling asleep ---------------------------------------------------------------------------------------------------


@pytest.mark.takes("sleep: awake → asleep", "sleep: asleep → waking", "sleep: waking → awake")
@pytest.mark.parametrize("is_fresh", [False, True], ids=["one agent", "another agent at each look"])
def test_what_nobody_asks_is_unloaded_and_loaded_again_when_it_is_asked(is_fresh: bool) -> None:
    night = Night(is_fresh=is_fresh)
    night.rule()
    Replica.objects.filter(pk=night.one.pk).update(timings={"fetch_s": 9.0, "load_s": 1.5, "warmup_s": 0.2})
    night.later()
    night.asked(5)
    night.later()
    night.later(LEAST_S - 1)
    assert night.state() == "awake"
    night.later(1)
    assert (night.state(), night.sleep().wake_s, len(night.replicas())) == ("asleep", 2 + 3, 1)
    night.later()
    assert night.replicas() and "gateway-1 has not taken that yet" in night.sleep().trouble
    night.gateway.obey()
    night.later()
    assert night.replicas() == [] and night.sleep().trouble == ""
    let_go()
    for _ in range(3):
        night.later(600)
    assert (night.state(), continue_placing(actor=SYSTEM), night.replicas()) == ("asleep", [], [])
    (refused,) = night.asked()
    assert refused.is_error
    night.later()
    assert night.state() == "waking" and len(night.replicas()) == 1
    night.later()
    bring_up()
    night.later()
    assert night.state() == "awake"
    night.gateway.obey()
    assert not any(one.is_error for one in night.asked(5))
    assert verbs() == ["sleep.ruled", "sleep.begun", "sleep.unloaded", "sleep.ending", "sleep.ended"]
    night.later()
    night.later(LEAST_S - 1)
    assert night.state() == "awake"


def test_what_gateways_do_not_tell_is_no_quiet(night: Night) -> None:
    night.later()
    night.gateway.fail("timeout")
    night.later(LEAST_S * 10)
    assert night.state() == "awake"
    night.gateway.fail(None)
    night.gateway.restart()  # what it counted before is lost
    night.later()
    assert night.state() == "awake"
    night.gateway.freeze()
    night.later(LEAST_S * 2)
    assert night.state() == "awake"
    night.gateway.freeze(False)
    night.later()
    assert night.state() == "asleep"


def test_a_gateway_that_tells_counts_whatever_the_control_plane_heard_of_it(night: Night) -> None:
    add_gateway(night, "apart")  # it never spoke to a control plane
    night.idle()
    night.gateway.obey()
    night.later()
    assert night.state() == "asleep" and "apart has not taken that yet" in night.sleep().trouble


def in_a_rollout(night: Night) -> None:
    started(candidate=release_of(night.model))


def in_an_undo_window(night: Night) -> None:
    before, rollout = release_of(night.model), started(candidate=release_of(night.model))
    put(rollout, "promoted", stable=before, undo_until=timezone.now() + timedelta(hours=1))
    Replica.objects.create(release=before, environment=night.environment, node=night.one.node, state="ready")


def with_a_stream(night: Night) -> None:
    night.hosts.active = 1


def with_a_gateway_that_does_not_tell_of_its_servers(night: Night) -> None:
    night.hosts.fails = True


def without_a_rule(night: Night) -> None:
    night.rule(unload_after_s=None)


@pytest.mark.parametrize(
    "keep",
    [
        in_a_rollout,
        in_an_undo_window,
        scaled_by_a_person,
        with_a_stream,
        with_a_gateway_that_does_not_tell_of_its_servers,
        without_a_rule,
    ],
)
def test_what_keeps_a_model_awake(night: Night, keep: Any) -> None:
    keep(night)
    night.idle(LEAST_S * 10)
    assert night.state() == "awake" and night.replicas()


def test_what_the_engine_asked_for_a_rollout_keeps_no_model_awake_after_it(night: Night) -> None:
    ReplicaTarget.objects.create(
        release=night.one.release, environment=night.environment, replicas=2, changed_by="system:engine"
    )
    night.idle()
    assert night.state() == "asleep"


def test_a_request_that_comes_as_it_falls_asleep_wakes_it_again(night: Night) -> None:
    night.idle()
    night.asked()  # before the gateway has heard of it
    night.gateway.obey()
    night.later()
    assert night.state() == "awake" and [one.pk for one in night.replicas()] == [night.one.pk]
    assert verbs() == ["sleep.ruled", "sleep.begun", "sleep.ending", "sleep.ended"]


def test_servers_stay_while_something_is_in_flight_on_them(night: Night) -> None:
    night.idle()
    night.gateway.obey()
    night.hosts.active = 3
    night.later()
    assert night.replicas() and night.sleep().trouble.endswith("in flight on them: 3 through gateway-1.")
    night.hosts.active = 0
    night.later()
    assert night.replicas() == []


# --- what gateways are told -------------------------------------------------------------------------------------------


def test_gateways_answer_for_it_until_a_server_does(night: Night) -> None:
    def told() -> Any:
        admission = admit(store.load().tables["production"], None, store.load().known["production"])
        assert not any(problem.is_withheld for problem in admission.problems)
        return admission.table.models[0].asleep

    assert told() is None
    asleep(night)
    assert told() == Asleep(UNKNOWN_WAKE_S)
    night.rule(loads_on_demand=False)
    assert told() == Asleep(None)
    night.rule()
    night.gateway.obey()
    night.asked()
    night.later()
    assert (night.state(), told()) == ("waking", Asleep(UNKNOWN_WAKE_S))
    bring_up()
    assert (night.state(), told()) == ("waking", None)
    night.later()
    assert (night.state(), told()) == ("awake", None)


# --- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.takes("sleep: waking → asleep")
def test_a_person_says_when(night: Night) -> None:
    team = make_actor(team=night.model.team)
    scaled_by_a_person(night)

    def sleeps(**over: Any) -> Sleep:
        return put_to_sleep(
            **{"actor": team, "model": night.model, "environment": night.environment, "reason": "a holiday", **over}
        )

    with pytest.raises(Refused):
        sleeps(actor=make_actor(Role.VIEWER, team=night.model.team))
    with pytest.raises(StateChanged, match="is not served in production"):
        sleeps(model=make_model(team=night.model.team))
    assert sleeps().state == "asleep" and sleeps().version == night.sleep().version
    wake_model(actor=team, model=night.model, environment=night.environment, reason="")
    assert sleeps().state == "asleep"
    wake_model(actor=team, model=night.model, environment=night.environment, reason="")
    in_a_rollout(night)
    with pytest.raises(StateChanged, match=r"cannot sleep in production now: rollout \d+ in") as refused:
        sleeps()
    assert refused.value.code == "model_in_use"


def test_what_a_rollout_came_to_need_meanwhile_is_not_unloaded(night: Night) -> None:
    night.idle()
    in_a_rollout(night)
    assert unload_asleep(actor=SYSTEM, sleep=night.sleep()) is False and night.replicas()


# --- at once ----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_two_who_act_at_once_leave_one_state_and_no_half_of_one() -> None:
    night = Night()
    night.rule()
    where = {"actor": SYSTEM, "model": night.model, "environment": night.environment, "reason": ""}
    start, unloaded = Barrier(3), list[bool]()

    def unload(row: Sleep) -> None:
        unloaded.append(unload_asleep(actor=SYSTEM, sleep=row))

    def at_once(do: Callable[[], Any]) -> None:
        start.wait(timeout=30)
        try:
            do()
        except StateChanged:
            pass
        finally:
            connection.close()

    for _ in range(5):
        row = put_to_sleep(**where)
        acts = (
            partial(wake_model, **where),
            partial(unload, row),
            partial(put_to_sleep, **where),
        )
        threads = [Thread(target=at_once, args=[act]) for act in acts]
        for one in threads:
            one.start()
        for one in threads:
            one.join(timeout=60)
        assert night.state() in ("asleep", "waking")
        let_go()
        wake_model(**where)
        for _ in range(3):
            night.later()
            bring_up()
        assert (night.state(), len(night.replicas())) == ("awake", 1)
    unload(put_to_sleep(**where))  # with nobody beside it
    assert unloaded[-1] and verbs("deployment.drained") == ["deployment.drained"] * unloaded.count(True)
    unloaded_after = [before for before, verb in pairwise(verbs()) if verb == "sleep.unloaded"]
    assert unloaded_after == ["sleep.begun"] * unloaded.count(True)  # never after something woke it
    moves = Event.objects.filter(verb__in=["sleep.begun", "sleep.ending", "sleep.ended"]).order_by("seq")
    states = list(moves.values_list("from_state", "to_state"))
    assert all(one[1] == after[0] for one, after in pairwise(states)) and len(states) >= 16
