"""How many replicas a release has: what is said, what every agent brings about, and what a lost node leaves to the others."""

from __future__ import annotations

import json
from datetime import timedelta
from threading import Barrier, Thread
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.core.errors import Invalid, Refused, Stale, Unavailable
from registry.models import Release
from registry.queries.declared import Declared, declared_replicas, learn_declared
from serving.environments.queries.inventory import answering_servers
from serving.models import Environment, Node, Replica, ReplicaTarget, Server
from serving.targets.actions import ensure_replica, release_replica, replicas
from serving.targets.actions.lifecycle import drain_replica
from serving.targets.actions.replicas import continue_placing, scale_release, why_not_placed
from serving.targets.core.placement import Claim
from serving.targets.queries.placement import most_that_fit
from serving.targets.queries.replicas import replica_plans
from tests.support.worlds.factories import (
    events_of,
    make_actor,
    make_environment,
    make_model,
    make_node,
    make_release,
    make_replica,
    make_server,
    resealed,
)
from tests.support.worlds.rollout_setup import production, serves, stable_server

pytestmark = pytest.mark.django_db
AGENT = Actor.system("agent:local")


@pytest.fixture
def stable() -> Replica:
    return stable_server()


def scale(one: Replica, replicas: int, actor: Actor = AGENT, **over: Any) -> ReplicaTarget:
    return scale_release(
        actor=actor, release=one.release, environment=one.environment, replicas=replicas, reason="more users", **over
    )


def nodes_of(one: Replica) -> list[str]:
    """Where its replicas are that are to stay."""
    rows = Replica.objects.filter(release=one.release, is_wanted=True, drain_asked_at=None).exclude(state="gone")
    return sorted(rows.values_list("node_id", flat=True))


def bring_up(one: Replica) -> None:
    """Every replica answers."""
    for replica in Replica.objects.filter(release=one.release, is_wanted=True).exclude(state="ready"):
        Replica.objects.filter(pk=replica.pk).update(state="ready")
        make_server(replica)


def silence(node: str, seconds: float = 61) -> None:
    Node.objects.filter(name=node).update(seen_at=timezone.now() - timedelta(seconds=seconds))


def test_what_is_wanted_is_placed_and_spread_over_the_nodes(stable: Replica) -> None:
    for name in ("b", "c"):
        make_node(name)
    scale(stable, 3)
    assert continue_placing(actor=AGENT) == [] and nodes_of(stable) == ["b", "c", "local"]
    placed = Replica.objects.exclude(pk=stable.pk).order_by("ordinal")
    assert [one.ordinal for one in placed] == [1, 2] and {one.reason for one in placed} == {"3 replicas are wanted."}
    assert continue_placing(actor=AGENT) == [] and Replica.objects.count() == 3
    told = events_of("deployment", f"{stable.release.model.slug}/r1@production").get()
    assert (told.verb, told.facts["replicas"], told.facts["before"]) == ("deployment.scaled", 3, None)


def test_what_the_envelope_declares_is_wanted_where_nobody_says_otherwise(stable: Replica) -> None:
    resealed(stable.release, envelope={"lifecycle": {"replicas": {"min": 2, "max": 3}}})
    continue_placing(actor=AGENT)
    assert nodes_of(stable) == ["local", "local"]
    scale(stable, 1)
    continue_placing(actor=AGENT)
    assert nodes_of(stable) == ["local"]
    with pytest.raises(Invalid, match="between 1 and 3: its envelope declares no more"):
        scale(stable, 4)
    with pytest.raises(Invalid, match="let its model sleep: sluicegate api POST /models/.*/sleep/begin"):
        scale(stable, 0)


def test_what_a_gate_measures_is_one_server() -> None:
    one = make_replica(environment=make_environment("staging", is_routed=False))
    resealed(one.release, envelope={"lifecycle": {"replicas": {"min": 2}}})
    continue_placing(actor=AGENT)
    assert Replica.objects.count() == 1
    with pytest.raises(Invalid, match="what gates measure there is one server"):
        scale(one, 2)


def test_fewer_are_let_go_and_stable_keeps_the_one_that_answers(stable: Replica) -> None:
    make_node("b")
    scale(stable, 2)
    continue_placing(actor=AGENT)
    scale(stable, 1)
    continue_placing(actor=AGENT)
    assert nodes_of(stable) == ["local"]  # the other did not answer yet
    left = Replica.objects.get(node="b")
    assert not left.is_wanted and left.reason == "1 is wanted, and there are 2."
    assert stable.release.replica_targets.get().version == 2


def test_one_too_many_is_not_let_go_as_the_other_fails(stable: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other's agent holds its replica's row, and tells of the failure next."""
    make_node("b")
    scale(stable, 2)
    continue_placing(actor=AGENT)
    bring_up(stable)
    scale(stable, 1)
    locked = replicas.lock_routes

    def wait_for(environment: Environment, *drained: Release) -> Environment:
        if drained:
            Replica.objects.filter(pk=stable.pk).update(state="failed", failed_at=timezone.now())
            Server.objects.filter(replica=stable).update(is_serving=False, ended_at=timezone.now())
        return locked(environment, *drained)

    monkeypatch.setattr(replicas, "lock_routes", wait_for)
    assert continue_placing(actor=AGENT) == [] and nodes_of(stable) == ["b"]


def test_the_event_of_a_drain_has_the_state_that_the_row_had(stable: Replica) -> None:
    """Its agent moved it between the look and the lock."""
    Replica.objects.filter(pk=stable.pk).update(state="loading")
    stable.servers.update(is_serving=False)
    drain_replica(actor=AGENT, replica=stable, reason="Repair.", is_spare=True)
    told = events_of("deployment", stable.pk).get(verb="deployment.drained")
    assert (told.from_state, told.to_state) == ("loading", "loading")


def test_a_silent_agents_servers_keep_their_traffic_and_nothing_is_moved(stable: Replica) -> None:
    make_node("b")
    silence("local")
    continue_placing(actor=AGENT)
    assert nodes_of(stable) == ["local"] and answering_servers().get().replica == stable


def test_room_is_held_from_the_moment_that_a_replica_is_placed(stable: Replica) -> None:
    resealed(stable.release, envelope={"host": {"memory_mib_min": 600}})
    Node.objects.filter(name="local").update(facts={"memory_bytes": 1500 << 20})
    Replica.objects.filter(pk=stable.pk).update(claim=Claim(600).as_json())
    scale(stable, 3)
    (trouble,) = continue_placing(actor=AGENT)
    assert "300 MiB of memory are left of 1500, and it declares 600" in trouble and "No node has room" in trouble
    assert nodes_of(stable) == ["local", "local"]
    assert Replica.objects.get(ordinal=1).claim == {"memory_mib": 600, "devices": {}}
    make_node("b")
    assert continue_placing(actor=AGENT) == [] and nodes_of(stable) == ["b", "local", "local"]


def test_a_node_that_contradicts_the_envelope_is_refused_with_the_reason() -> None:
    release = make_release()
    resealed(release, envelope={"host": {"memory_mib_min": 600}})
    make_node(facts={"memory_bytes": 500 << 20})
    with pytest.raises(Unavailable, match="local: The node has 500 MiB of memory; it asks for 600") as refused:
        ensure_replica(actor=AGENT, release=release, environment=production(), reason="")
    assert refused.value.code == "fits_nowhere" and refused.value.facts["nodes"]


def test_what_is_no_longer_wanted_forgets_how_many_it_had(stable: Replica) -> None:
    scale(stable, 2)
    continue_placing(actor=AGENT)
    serves(make_release(stable.release.model))
    release_replica(actor=AGENT, release=stable.release, environment=stable.environment, reason="replaced")
    assert nodes_of(stable) == [] and not ReplicaTarget.objects.exists()
    continue_placing(actor=AGENT)
    assert nodes_of(stable) == []


@pytest.mark.parametrize("role", list(Role))
def test_who_may_say_how_many(role: Role, stable: Replica) -> None:
    actor = make_actor(role, team=stable.release.model.team.slug)
    if role in (Role.MODEL_TEAM, Role.RELEASE_MANAGER):
        assert scale(stable, 2, actor).changed_by == actor.name
    else:
        with pytest.raises(Refused):
            scale(stable, 2, actor)


def test_who_saw_another_number_changes_nothing(stable: Replica) -> None:
    scale(stable, 2, expected_version=0)
    with pytest.raises(Stale):
        scale(stable, 3, expected_version=0)
    assert scale(stable, 2, expected_version=1).version == 1  # it is so already
    assert scale(stable, 3, expected_version=1).version == 2


@pytest.mark.django_db(transaction=True)
def test_two_agents_at_once_place_each_replica_once(stable: Replica) -> None:
    make_node("b")
    scale(stable, 5)
    together = Barrier(4)

    def place() -> None:
        together.wait()
        for _ in range(3):
            continue_placing(actor=AGENT)
        connection.close()

    threads = [Thread(target=place) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(Replica.objects.values_list("ordinal", flat=True)) == [0, 1, 2, 3, 4]


def test_a_look_asks_as_much_for_many_as_for_one(stable: Replica, django_assert_max_num_queries: Any) -> None:
    for _ in range(20):
        make_server(make_replica(make_release(stable.release.model), production(), state="ready"))
    with django_assert_max_num_queries(6):
        assert len(replica_plans()) == 21


def test_a_manifest_that_cannot_be_read_declares_nothing_and_blinds_nobody(stable: Replica) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE registry_release DISABLE TRIGGER USER")
        cursor.execute("UPDATE registry_release SET manifest = '{' WHERE id = %s", [stable.release_id])
        cursor.execute("ALTER TABLE registry_release ENABLE TRIGGER USER")
    assert declared_replicas([stable.release_id]) == {stable.release_id: Declared()}


@pytest.mark.parametrize(
    ("envelope", "start_s"),
    [
        ({}, 0.0),
        ({"lifecycle": {"load_timeout_s": 300}}, 300.0),
        ({"performance": [{"cold_start_s": {"load": 90, "warmup": 15}}, {"cold_start_s": {"load": 20}}]}, 105.0),
        ({"lifecycle": {"load_timeout_s": 300}, "performance": [{"cold_start_s": {"load": 90}}]}, 90.0),
    ],
)
def test_how_long_a_server_takes_to_start_is_declared(envelope: dict[str, Any], start_s: float) -> None:
    release = Release(manifest=json.dumps({"envelope": envelope}))
    learn_declared(release)
    assert declared_replicas([release.pk])[release.pk].start_s == start_s


def test_one_server_that_somebody_else_runs_takes_one_release_of_a_model(stable: Replica) -> None:
    Node.objects.filter(pk=stable.node_id).update(facts={"static": {"address": "10.20.0.7:8000:8001"}})
    staging = make_environment("staging")
    said = "it is one server, which serves one release of"
    scale(stable, 2)  # a second replica of its own
    assert nodes_of(stable) == [stable.node_id] and said in why_not_placed(stable.release, stable.environment)
    assert most_that_fit(stable.release, stable.environment, 5) == 1
    for release in (stable.release, make_release(stable.release.model)):  # the same elsewhere, and the next one
        with pytest.raises(Unavailable, match=said) as caught:
            ensure_replica(actor=AGENT, release=release, environment=staging, reason="a test")
        assert caught.value.code == "no_room"
    other = ensure_replica(actor=AGENT, release=make_release(make_model("other")), environment=staging, reason="a test")
    assert other.node_id == stable.node_id  # it has room for other models
    make_node("b")
    continue_placing(actor=AGENT)
    assert nodes_of(stable) == ["b", stable.node_id]


def test_a_silent_node_takes_a_replica_only_if_no_other_node_reports(stable: Replica) -> None:
    make_node("b")
    silence("b")
    scale(stable, 2)
    continue_placing(actor=AGENT)
    assert nodes_of(stable) == ["local", "local"]
    silence("local")
    scale(stable, 3)
    continue_placing(actor=AGENT)
    assert nodes_of(stable) == ["b", "local", "local"]  # the agent of either may be restarting
