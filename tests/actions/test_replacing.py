"""One replica is replaced: another takes its ordinal first, and it goes once that answers; one that is set aside gets no traffic."""

from __future__ import annotations

import pytest
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.core.errors import Invalid, Refused, StateChanged, Unavailable
from serving.environments.queries.inventory import answering_servers
from serving.models import Node, Replica, Server
from serving.targets.actions.draining import continue_draining
from serving.targets.actions.lifecycle import mark_serving, record_probe
from serving.targets.actions.replacing import replace_replica, set_aside_replica
from serving.targets.actions.replicas import continue_placing
from serving.traffic.queries.endpoints import HEARD_WITHIN
from tests.actions.test_replicas import bring_up, nodes_of, scale
from tests.support.worlds.factories import (
    events_of,
    make_actor,
    make_environment,
    make_node,
    make_replica,
    make_server,
    resealed,
)
from tests.support.worlds.rollout_setup import stable_server, with_stable

pytestmark = pytest.mark.django_db
AGENT = Actor.system("agent:local")


@pytest.fixture
def two() -> Replica:
    """A stable release with a replica on `local`, which is given, and one on `b`."""
    stable = stable_server()
    make_node("b")
    scale(stable, 2)
    continue_placing(actor=AGENT)
    bring_up(stable)
    return stable


def answering() -> list[str]:
    return sorted(one.replica.node_id for one in answering_servers())


def test_another_takes_its_slot_and_it_goes_once_that_answers(two: Replica) -> None:
    make_node("c")
    placed = replace_replica(actor=AGENT, replica=two, reason="Its disk is old.")
    assert (placed.node_id, placed.ordinal) == ("c", two.ordinal) and nodes_of(two) == ["b", "c"]
    assert replace_replica(actor=AGENT, replica=two, reason="again") == placed
    continue_draining(actor=AGENT, node="local")
    two.refresh_from_db()
    assert two.is_wanted and answering() == ["b", "local"]  # the other does not answer yet
    bring_up(two)
    continue_draining(actor=AGENT, node="local")
    two.refresh_from_db()
    assert not two.is_wanted and two.reason == "Its disk is old." and answering() == ["b", "c"]
    assert continue_placing(actor=AGENT) == [] and Replica.objects.count() == 3
    with pytest.raises(StateChanged, match="is being taken out already") as refused:
        replace_replica(actor=AGENT, replica=two, reason="")
    assert refused.value.code == "replica_leaving"


def test_the_only_one_is_replaced_on_its_own_node_where_there_is_no_other() -> None:
    stable = stable_server()
    placed = replace_replica(actor=AGENT, replica=stable, reason="")
    assert placed.node_id == "local" and answering() == ["local"]
    with pytest.raises(StateChanged, match="keeps its traffic") as refused:
        replace_replica(actor=AGENT, replica=stable, reason="", set_aside=True)
    assert refused.value.code == "last_replica"
    bring_up(stable)
    continue_draining(actor=AGENT, node="local")
    assert not Replica.objects.get(pk=stable.pk).is_wanted


def test_where_no_node_has_room_it_stays_as_it_is() -> None:
    stable = stable_server()
    resealed(stable.release, envelope={"host": {"memory_mib_min": 4096}})
    Replica.objects.filter(pk=stable.pk).update(claim={"memory_mib": 4096})
    type(stable.node).objects.update(facts={"memory_bytes": 5120 << 20})
    with pytest.raises(Unavailable) as refused:
        replace_replica(actor=AGENT, replica=stable, reason="")
    stable.refresh_from_db()
    assert refused.value.code == "no_room" and stable.drain_asked_at is None


def test_one_that_is_set_aside_gets_no_traffic_however_well_it_answers_its_agent(two: Replica) -> None:
    server = Server.objects.get(replica=two)
    set_aside_replica(actor=AGENT, replica=two, reason="It fails where the other does not.")
    set_aside_replica(actor=AGENT, replica=two, reason="again")
    assert answering() == ["b"]
    record_probe(actor=AGENT, server=server)
    mark_serving(actor=AGENT, server=server, is_serving=True, reason="it answered its warm-up requests")
    mark_serving(actor=AGENT, server=make_server(two, is_serving=False), is_serving=True, reason="brought back")
    assert answering() == ["b"]
    told = events_of("deployment", two.pk).get(verb="deployment.set_aside")
    assert told.reason == "It fails where the other does not." and told.facts["node"] == "local"


def test_agents_replace_one_that_is_set_aside_as_soon_as_there_is_room(two: Replica) -> None:
    set_aside_replica(actor=AGENT, replica=two, reason="It fails where the other does not.")
    make_node("c")
    assert continue_placing(actor=AGENT) == [] and nodes_of(two) == ["b", "c"]
    placed = Replica.objects.get(node="c")
    assert placed.ordinal == two.ordinal and "is set aside" in placed.reason.lower() and not placed.is_set_aside
    Replica.objects.filter(pk=placed.pk).update(state="ready")
    make_server(placed)
    continue_draining(actor=AGENT, node="local")
    two.refresh_from_db()
    assert not two.is_wanted and answering() == ["b", "c"]


def test_the_last_that_answers_is_never_set_aside(two: Replica) -> None:
    other = Replica.objects.get(node="b")
    set_aside_replica(actor=AGENT, replica=two, reason="")
    with pytest.raises(StateChanged, match="the one on b keeps its traffic"):
        set_aside_replica(actor=AGENT, replica=other, reason="")
    assert answering() == ["b"]


def test_one_on_a_node_that_is_silent_is_not_counted_as_answering(two: Replica) -> None:
    Node.objects.filter(name="b").update(seen_at=timezone.now() - HEARD_WITHIN)
    with pytest.raises(StateChanged, match="the one on local keeps its traffic"):
        set_aside_replica(actor=AGENT, replica=two, reason="")
    Node.objects.update(seen_at=timezone.now() - HEARD_WITHIN)  # nobody is heard: whoever looks has been away
    set_aside_replica(actor=AGENT, replica=two, reason="")
    assert answering() == ["b"]


def test_one_is_set_aside_also_where_no_node_has_room_for_another(two: Replica) -> None:
    resealed(two.release, envelope={"host": {"memory_mib_min": 4096}})
    Replica.objects.update(claim={"memory_mib": 4096})
    Node.objects.update(facts={"memory_bytes": 5120 << 20})
    two.refresh_from_db()
    assert replace_replica(actor=AGENT, replica=two, reason="It fails.", set_aside=True) == two
    assert answering() == ["b"] and nodes_of(two) == ["b", "local"]


def test_a_candidates_replica_that_was_replaced_does_not_wait_for_the_rollouts_end() -> None:
    rollout, _ = with_stable()
    one = make_replica(rollout.candidate, rollout.environment, state="ready")
    make_server(one)
    make_node("b")
    placed = replace_replica(actor=AGENT, replica=one, reason="")
    Replica.objects.filter(pk=placed.pk).update(state="ready")
    continue_draining(actor=AGENT, node="local")
    assert Replica.objects.get(pk=one.pk).is_wanted
    make_server(placed)
    continue_draining(actor=AGENT, node="local")
    assert not Replica.objects.get(pk=one.pk).is_wanted


def test_who_may_not_scale_may_not_replace(two: Replica) -> None:
    for verb in (replace_replica, set_aside_replica):
        with pytest.raises(Refused):
            verb(actor=make_actor(Role.VIEWER), replica=two, reason="")
        with pytest.raises(Invalid, match="2000 are the most"):
            verb(actor=AGENT, replica=two, reason="x" * 2001)


def test_what_a_gate_measures_is_not_replaced() -> None:
    one = make_replica(environment=make_environment("staging", is_routed=False))
    with pytest.raises(Invalid, match="what gates measure there is one server"):
        replace_replica(actor=AGENT, replica=one, reason="")
