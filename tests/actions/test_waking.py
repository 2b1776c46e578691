"""Who wakes a model, and what keeps it from that: nodes on which it failed, rollouts, and what does not concern it."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from ledger.core.errors import StateChanged
from ledger.models import Event
from registry.hooks.usage import usages_of
from registry.models import Release
from rollouts.actions.preview import preview_rollout
from rollouts.engine.loop import Engine
from rollouts.models import Rollout
from serving.models import Node, Replica, ReplicaTarget
from serving.targets.actions.sleeping import put_to_sleep, wake_model
from serving.targets.core.sleep import UNKNOWN_WAKE_S
from serving.targets.queries.sleep import unplaced
from tests.support.rigs.engine_rig import hear_everyone
from tests.support.worlds.factories import (
    make_actor,
    make_admin,
    make_environment,
    make_node,
    make_replica,
    make_server,
    resealed,
)
from tests.support.worlds.rollout_setup import put, release_of, started
from tests.support.worlds.rollout_story import AT_ONCE, began_earlier
from tests.support.worlds.sleep_setup import (  # noqa: F401
    SYSTEM,
    Night,
    asleep,
    bring_up,
    let_go,
    night,
    scaled_by_a_person,
    unloaded,
)
from validators.models import GateRun

pytestmark = pytest.mark.django_db


# --- who wakes it -----------------------------------------------------------------------------------------------------


def test_one_that_loads_not_on_demand_waits_for_a_person(night: Night) -> None:
    night.rule(loads_on_demand=False)
    asleep(night).asked(3)
    night.later()
    assert night.state() == "asleep"
    wake_model(
        actor=make_actor(team=night.model.team), model=night.model, environment=night.environment, reason="a demo"
    )
    night.later()
    assert night.state() == "waking" and night.replicas()
    assert Event.objects.get(verb="sleep.ending").reason == "a demo"


def test_the_number_of_replicas_is_said_once_it_is_awake(night: Night) -> None:
    asleep(night)
    with pytest.raises(
        StateChanged, match="Wake it, and ask again once it answers: sluicegate api POST /models/.*/sleep/end"
    ) as refused:
        scaled_by_a_person(night)
    assert refused.value.code == "model_asleep" and not ReplicaTarget.objects.exists()


def test_a_rollout_wakes_it_for_its_way_back(night: Night) -> None:
    asleep(night)
    rollout = started(candidate=release_of(night.model))
    assert rollout.stable == night.one.release
    night.later()
    assert night.state() == "waking" and night.replicas()
    assert "would go back to it" in night.sleep().state_reason


def test_it_waits_for_its_old_servers_to_go_and_tells_what_keeps_it(night: Night) -> None:
    night.idle()
    night.gateway.obey()
    night.later()
    night.asked()
    night.later()
    assert night.state() == "waking" and night.replicas() == [] and "being taken out" in night.sleep().trouble
    let_go()
    night.later()
    assert night.replicas() and night.sleep().trouble == ""
    Replica.objects.filter(is_wanted=True).update(state="failed", reason="load_failed: no", failed_at=timezone.now())
    night.later()
    assert night.sleep().trouble == "load_failed: no"
    Replica.objects.filter(is_wanted=True).update(failed_at=timezone.now() - timedelta(seconds=11))
    night.later()
    assert night.replicas()[0].state == "fetching" and night.sleep().trouble == ""


# --- servers that are ending -----------------------------------------------------------------------------------------


def test_a_server_that_its_agent_is_about_to_end_is_waited_for(night: Night) -> None:
    make_node("other")
    unloaded(night)
    night.asked()
    night.later()
    assert night.replicas() == [] and "being taken out" in night.sleep().trouble and unplaced() == []


# --- rollouts ---------------------------------------------------------------------------------------------------------


class Cramped:
    """A model sleeps on a node that has room for one server of it, and a rollout of its next release begins."""

    def __init__(self) -> None:
        self.night = night = Night()
        night.rule()
        Node.objects.update(facts={"memory_bytes": 60 * 2**20})
        resealed(night.one.release, envelope={"host": {"memory_mib_min": 40}})
        Replica.objects.filter(pk=night.one.pk).update(claim={"memory_mib": 40})
        asleep(night)
        self.candidate = resealed(release_of(night.model), envelope={"host": {"memory_mib_min": 40}})
        self.rollout = started(candidate=self.candidate)
        self.engine = hear_everyone(Engine(night.gateway, tick_s=0.05, lease_s=600, timings=AT_ONCE))

    def tick(self) -> Rollout:
        self.engine.step()
        self.night.gateway.obey()
        self.rollout.refresh_from_db()
        return self.rollout

    def placed(self) -> set[Release]:
        return {one.release for one in Replica.objects.filter(is_wanted=True).exclude(state="gone")}


@pytest.mark.django_db(transaction=True)
def test_a_candidate_takes_no_room_from_its_stable_that_sleeps() -> None:
    cramped = Cramped()
    night, stable = cramped.night, cramped.night.one.release
    for _ in range(2):
        reason = cramped.tick().reason
    assert cramped.placed() == set() and "r1, the rollback target, sleeps, and is given a server first." in reason
    night.asked()
    night.later()
    bring_up()
    night.later()
    assert night.state() == "awake" and cramped.placed() == {stable}
    for _ in range(2):
        reason = cramped.tick().reason
    assert cramped.placed() == {stable} and "No node has room" in reason
    began_earlier(86_400, "servers_gone")
    cramped.engine.cache.forget()
    assert cramped.tick().state == "cancelled" and night.state() == "awake"


@pytest.mark.django_db(transaction=True)
def test_a_rollout_whose_stable_does_not_wake_is_cancelled_in_time() -> None:
    cramped = Cramped()
    Node.objects.update(facts={"memory_bytes": 30 * 2**20})
    cramped.night.later()
    assert cramped.night.state() == "waking"
    reason = cramped.tick().reason
    assert "is given a server first. " in reason and "it asks for 40" in reason
    began_earlier(86_400, "servers_gone")
    cramped.engine.cache.forget()
    assert cramped.tick().state == "cancelled" and "is given a server first" in cramped.rollout.reason


@pytest.mark.django_db(transaction=True)
def test_a_candidate_that_has_a_server_already_is_told_that_its_stable_sleeps() -> None:
    cramped = Cramped()
    make_server(make_replica(cramped.candidate, cramped.night.environment, state="ready"))
    for _ in range(2):
        reason = cramped.tick().reason
    assert "has no serving server; waiting for it. r1, the rollback target, sleeps, and is given a server" in reason
    began_earlier(86_400, "stable_gone")
    cramped.engine.cache.forget()
    assert cramped.tick().state == "preparing" and "`sluicegate rollout promote" in cramped.rollout.reason


def test_the_preview_says_that_a_rollout_wakes_it(night: Night) -> None:
    asleep(night)
    candidate = release_of(night.model)

    def told() -> str:
        found = preview_rollout(actor=make_admin(), candidate=candidate, environment=night.environment)["warnings"]
        return str(next(one["message"] for one in found if one["code"] == "no_capacity_for_rollback"))

    assert told().startswith("r1, the rollback target, sleeps in production and is woken first: the rollout sends no")
    assert told().endswith(f"answers, in about {UNKNOWN_WAKE_S} s if a node has room.")
    night.asked()
    night.later()
    assert told().startswith("r1, the rollback target, is being woken in production: the rollout sends no traffic")


def in_a_rollout_elsewhere(night: Night) -> None:
    put(started(candidate=release_of(night.model)), "preparing", environment=make_environment("eu"))


def as_a_baseline_of_gates(night: Night) -> None:
    """Its servers are those of staging."""
    GateRun.objects.create(
        release=release_of(night.model), baseline=night.one.release, environment=make_environment("staging"), policy={},
        policy_digest="", state="running", requested_by="test",
    )  # fmt: skip


@pytest.mark.parametrize("elsewhere", [in_a_rollout_elsewhere, as_a_baseline_of_gates])
def test_what_goes_on_in_another_environment_keeps_no_model_awake_and_wakes_none(
    night: Night, elsewhere: Callable[[Night], None]
) -> None:
    elsewhere(night)
    assert usages_of([night.one.release.pk], but={"serving"})  # which keeps it from being retired
    asleep(night)
    night.later()
    assert night.state() == "asleep"


# --- at once ----------------------------------------------------------------------------------------------------------


def test_who_puts_a_model_to_sleep_takes_its_route_before_the_log(night: Night) -> None:
    """Whoever has the log and wants the route may wait for one who has the route and wants the log (lock order: CONTRIBUTING.md)."""
    with CaptureQueriesContext(connection) as asked:
        put_to_sleep(actor=SYSTEM, model=night.model, environment=night.environment, reason="")
    done = [query["sql"] for query in asked]
    route = next(at for at, sql in enumerate(done) if sql.startswith('UPDATE "serving_route"'))
    log = next(at for at, sql in enumerate(done) if "pg_advisory_xact_lock" in sql)
    assert route < log
