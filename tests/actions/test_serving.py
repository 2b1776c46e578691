"""Replicas: what may be asked for, and who may ask."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import pytest
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.core.errors import DomainError, Refused, StateChanged, Unavailable
from ledger.models import Event
from registry.hooks.code_runs import code_runs_of
from registry.models import Release, ServedModel, Waiver
from serving.environments.queries.inventory import replicas_in
from serving.models import Environment, Node, Replica, Route
from serving.targets import actions
from tests.support.worlds.replica_setup import (  # noqa: F401
    IMAGE,
    RUNTIME,
    SYSTEM,
    S,
    ensure,
    model,
    node,
    production,
    release,
    sealed,
    staging,
    verbs_of,
)

pytestmark = pytest.mark.django_db


def test_a_replica_is_made_once_and_recorded(release: Release, staging: Environment, node: Node) -> None:
    first, again = ensure(release, staging), ensure(release, staging)
    assert first == again and first.state == S.FETCHING and first.node == node
    assert verbs_of(first) == ["deployment.requested"]
    assert list(replicas_in(release, staging)) == [first]


def test_a_node_is_told_of_once_and_known_anew_at_each_beat() -> None:
    for cpus in (2, 4):
        actions.register_node(actor=SYSTEM, name="gpu-1", runtimes=[RUNTIME], facts={"cpu_count": cpus})
    assert Node.objects.get(name="gpu-1").facts == {"cpu_count": 4}
    event = Event.objects.get(verb="node.registered")
    assert (event.subject_id, event.facts) == ("gpu-1", {"images": [RUNTIME["image"]]})
    with pytest.raises(Refused):
        actions.register_node(actor=Actor("somebody"), name="gpu-2", runtimes=[], facts={})


def test_a_draft_is_refused(model: ServedModel, staging: Environment, node: Node) -> None:
    draft = Release.objects.create(model=model)
    with pytest.raises(StateChanged, match="Seal it first"):
        ensure(draft, staging)


def test_code_needs_a_waiver_of_just_these_contents(model: ServedModel, staging: Environment, node: Node) -> None:
    release = sealed(model, code=True)
    Waiver.objects.create(release=release, manifest_digest=f"sha256:{'0' * 64}", reason="another digest")
    with pytest.raises(Refused, match="no release manager has waived it") as caught:
        ensure(release, staging)
    assert caught.value.code == "code_not_waived"
    Waiver.objects.create(release=release, manifest_digest=release.digest, reason="read and understood")
    assert ensure(release, staging).state == S.FETCHING


UNCONTAINED = {"containment": {"tier": "not contained", "allows_uncontained_code": False}}


def waived(model: ServedModel) -> Release:
    release = sealed(model, code=True)
    Waiver.objects.create(release=release, manifest_digest=release.digest, reason="read and understood")
    return release


def test_code_runs_only_where_it_is_shut_in_or_the_owner_of_the_node_allows_it(
    model: ServedModel, staging: Environment, node: Node
) -> None:
    Node.objects.filter(pk=node.pk).update(facts=UNCONTAINED)
    release = waived(model)
    with pytest.raises(Refused, match="SLUICEGATE_ALLOW_UNCONTAINED_CODE") as caught:
        ensure(release, staging)
    assert caught.value.code == "not_contained"
    assert ensure(sealed(model), staging).node == node  # without code it runs there
    allowed = {"containment": {"tier": "not contained", "allows_uncontained_code": True}}
    Node.objects.filter(pk=node.pk).update(facts=allowed)
    assert ensure(release, staging).node == node


def test_code_goes_to_the_node_that_shuts_it_in(model: ServedModel, staging: Environment, node: Node) -> None:
    Node.objects.filter(pk=node.pk).update(facts=UNCONTAINED, seen_at=timezone.now())
    facts = {"containment": {"tier": "contained"}}
    safe = Node.objects.create(name="safe", runtimes=[RUNTIME], facts=facts, seen_at=timezone.now())
    assert ensure(waived(model), staging).node == safe


def test_what_code_may_do_is_told_for_every_node_that_it_could_run_on(model: ServedModel, node: Node) -> None:
    Node.objects.filter(pk=node.pk).update(facts=UNCONTAINED)
    Node.objects.create(name="old", runtimes=[RUNTIME], seen_at=timezone.now())  # its agent tells nothing yet
    Node.objects.create(name="other", runtimes=[], seen_at=timezone.now())
    local, old = code_runs_of(sealed(model, code=True))
    assert (local.node, local.containment, local.may_run) == ("local", "not contained", False)
    assert local.says.startswith("This code will run with the service's rights")
    assert (old.node, old.containment, old.may_run) == ("old", "unknown", True) and "service's rights" in old.says
    assert code_runs_of(sealed(model)) == []


def test_a_runtime_that_no_node_has_is_refused_with_those_that_are_there(
    model: ServedModel, staging: Environment, node: Node
) -> None:
    with pytest.raises(Unavailable) as caught:
        ensure(sealed(model, image=f"other@sha256:{'b' * 64}"), staging)
    assert IMAGE in caught.value.message
    assert Replica.objects.count() == 0


@pytest.mark.parametrize(("role", "may_stage"), [(Role.CI, True), (Role.MODEL_TEAM, True), (None, False)])
def test_who_may_deploy(release: Release, staging: Environment, node: Node, role: Role | None, may_stage: bool) -> None:
    actor = Actor("robot", user_id=1, roles=(("vision", role),) if role else ())
    if may_stage:
        assert ensure(release, staging, actor).pk
    else:
        with pytest.raises(Refused):
            ensure(release, staging, actor)


def test_only_the_system_reports_states(release: Release, staging: Environment, node: Node) -> None:
    replica = ensure(release, staging)
    with pytest.raises(Refused):
        actions.record_state(actor=Actor("ci", roles=(("vision", Role.CI),)), replica=replica, to=S.LOADING, reason="")


def test_a_move_from_a_stale_row_changes_nothing(release: Release, staging: Environment, node: Node) -> None:
    replica = ensure(release, staging)
    stale = Replica.objects.get(pk=replica.pk)
    actions.record_state(actor=SYSTEM, replica=replica, to=S.LOADING, reason="first")
    with pytest.raises(StateChanged):
        actions.record_state(actor=SYSTEM, replica=stale, to=S.FAILED, reason="second")
    assert Replica.objects.get(pk=replica.pk).state == S.LOADING
    assert verbs_of(replica) == ["deployment.requested", "deployment.fetched"]


def test_a_move_that_the_table_does_not_know_is_refused(release: Release, staging: Environment, node: Node) -> None:
    with pytest.raises(StateChanged, match="cannot become ready"):
        actions.record_state(actor=SYSTEM, replica=ensure(release, staging), to=S.READY, reason="")


def test_draining_is_refused_while_traffic_may_come(model: ServedModel, production: Environment, node: Node) -> None:
    stable, candidate = sealed(model), sealed(model)
    held, canary = ensure(stable, production), ensure(candidate, production)
    route = Route.objects.create(
        environment=production,
        model=model,
        stable=stable,
        candidate=candidate,
        candidate_bp=1,
        changed_at=timezone.now(),
    )
    for replica in (held, canary):
        with pytest.raises(StateChanged) as caught:
            actions.drain_replica(actor=SYSTEM, replica=replica, reason="away")
        assert caught.value.code == "still_routed"
    route.candidate_bp = 0
    route.save()
    assert not actions.drain_replica(actor=SYSTEM, replica=canary, reason="away").is_wanted
    actions.drain_replica(actor=SYSTEM, replica=canary, reason="again")
    assert verbs_of(canary).count("deployment.drained") == 1
    with pytest.raises(StateChanged, match="Ask again when it is gone"):
        ensure(candidate, production)


def test_every_refusal_says_what_to_do_next(release: Release, staging: Environment) -> None:
    with pytest.raises(DomainError) as caught:
        ensure(release, staging)
    assert "start a node" in str(caught.value) and "no_node_for_runtime" in str(caught.value)
    Node.objects.create(name="theirs", facts={"missing": "It does not answer."}, seen_at=timezone.now())
    with pytest.raises(DomainError, match="with that runtime. theirs runs nothing: It does not answer."):
        ensure(release, staging)
    Node.objects.update(runtimes=[{"image": "local/other@sha256:" + "a" * 64, "backends": []}])
    with pytest.raises(DomainError, match="theirs does not run every kind: It does not answer."):
        ensure(release, staging)
