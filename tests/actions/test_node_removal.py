"""Taking a node off the list: what must be gone from it before, and what its agent finds when it comes back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.core.errors import NotFound, Refused, Stale, StateChanged
from serving.actions.deployments import register_node
from serving.actions.removing import remove_node
from serving.core.lifecycle import DeploymentState
from serving.models import Deployment, Node, Server
from serving.queries import get_node
from serving.queries.replicas import lost_nodes
from tests.api.cli_world import Run, run, tokens  # noqa: F401
from tests.deployment_setup import World, clock, model, node, production, release, staging, world  # noqa: F401
from tests.factories import events_of, make_actor, make_admin, make_deployment, make_node, make_server, make_user
from tests.pages.test_model_tabs import signed_in

pytestmark = pytest.mark.django_db
AGENT = Actor.system("agent:gone")


def gone() -> Node:
    """A node that was heard of last an hour ago."""
    make_node()
    return make_node("gone", seen_at=timezone.now() - timedelta(hours=1))


def test_an_empty_node_goes_off_the_list_and_comes_back_cordoned() -> None:
    found = remove_node(actor=make_admin(), node=gone(), reason="sold")
    assert found.removed_at and found.cordoned_at
    assert remove_node(actor=make_admin(), node=found, reason="again").version == found.version
    with pytest.raises(NotFound):
        get_node("gone")
    assert lost_nodes() == set()
    assert events_of("node", "gone").first().reason == "sold"  # type: ignore[union-attr]
    register_node(actor=AGENT, name="gone", runtimes=[], facts={})
    assert get_node("gone").cordoned_at is not None
    register_node(actor=AGENT, name="gone", runtimes=[], facts={})
    told = [(one.verb, one.actor) for one in events_of("node", "gone").order_by("pk")]
    assert told[-1] == ("node.returned", AGENT.name) and [verb for verb, _ in told].count("node.returned") == 1


def test_what_is_wanted_there_is_drained_first() -> None:
    here = gone()
    one = make_deployment()
    Deployment.objects.filter(pk=one.pk).update(node=here)
    with pytest.raises(StateChanged, match="Drain it first: sluicegate api POST /nodes/gone/drain") as refused:
        remove_node(actor=make_admin(), node=here, reason="")
    assert refused.value.code == "node_in_use" and one.release.model.slug in refused.value.message
    assert Node.objects.get(name="gone").removed_at is None


@pytest.mark.parametrize("state", ["fetching", "loading", "warming", "ready", "draining", "failed"])
def test_what_a_lost_node_still_had_to_drop_is_given_up(state: str) -> None:
    here = gone()
    one = make_deployment(state=state, is_wanted=False)
    server = make_server(one)
    Deployment.objects.filter(pk=one.pk).update(node=here)
    remove_node(actor=make_admin(), node=here, reason="burnt")
    one.refresh_from_db()
    assert (one.state, one.reason) == ("gone", "Node gone was removed.") and one.gone_at
    assert Server.objects.get(pk=server.pk).ended_at


def test_an_agent_that_is_about_drops_it_itself() -> None:
    here = make_node()
    make_deployment(state="ready", is_wanted=False)
    with pytest.raises(StateChanged, match="its agent is about"):
        remove_node(actor=make_admin(), node=here, reason="")


def test_an_agent_that_comes_back_ends_what_was_given_up(world: World) -> None:  # noqa: F811
    world.until(DeploymentState.READY)
    assert world.launcher.running
    Deployment.objects.update(state="gone", is_wanted=False, gone_at=timezone.now())
    assert world.reconciler.step() is None and not world.launcher.running


@pytest.mark.parametrize("role", list(Role))
def test_only_an_administrator_removes(role: Role) -> None:
    here = gone()
    with pytest.raises(Refused):
        remove_node(actor=make_actor(role), node=here, reason="")
    member, address = (
        signed_in(make_user("ana", team="search", role=role)),
        reverse("fleet_act", args=["gone", "remove"]),
    )
    assert member.post(address, {"version": "1"}).status_code == 403


def test_who_saw_another_state_removes_nothing() -> None:
    with pytest.raises(Stale):
        remove_node(actor=make_admin(), node=gone(), reason="", expected_version=9)


def test_the_page_removes() -> None:
    gone()
    admin = signed_in(make_user("root", is_admin=True))
    assert "gone-remove" in admin.get(reverse("fleet")).content.decode()
    address = reverse("fleet_act", args=["gone", "remove"])
    assert admin.post(address, {"version": "1"}).headers["Location"] == reverse("fleet")
    assert "gone-remove" not in admin.get(reverse("fleet")).content.decode()
