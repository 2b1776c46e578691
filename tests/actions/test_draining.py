"""Draining a node or one server: what stops, what moves first, what waits, what stays; confirmed, told, and gone on with by itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.core.errors import Invalid, NotFound, Refused, StateChanged
from rollouts.models import Rollout
from serving.actions.deployments import release_deployment
from serving.actions.draining import continue_draining, drain_node, drain_one
from serving.actions.nodes import uncordon_node
from serving.actions.replicas import continue_placing
from serving.core.draining import Drainable, Fate, fate_of, serves_users
from serving.models import Deployment, Node
from serving.queries.draining import deployments_on, digest_of_drain, drain_plan
from tests.factories import (
    events_of,
    make_actor,
    make_admin,
    make_deployment,
    make_node,
    make_release,
    make_server,
    make_user,
    resealed,
)
from tests.pages.markup import squeezed
from tests.pages.test_model_tabs import HOSTILE, signed_in
from tests.rollout_setup import production, put, serves, stable_server, with_stable

pytestmark = pytest.mark.django_db
AGENT = Actor.system("agent:local")


@pytest.mark.parametrize(
    ("over", "fate", "says"),
    [
        ({"is_wanted": False, "is_stable": True}, Fate.LEAVING, "being taken out already"),
        ({}, Fate.STOPS, "needed by nothing"),
        ({"uses": ("gate run 3",), "answers_on": "b"}, Fate.WAITS, "until this has ended: gate run 3"),
        ({"is_stable": True, "answers_on": "b"}, Fate.STOPS, "answers on b too"),
        ({"is_stable": True, "goes_to": "b"}, Fate.MOVES, "it is started on b"),
        ({"is_stable": True, "goes_to": "b", "is_moving": True}, Fate.MOVES, "is being started on b"),
        ({"is_stable": True, "why_nowhere": "There is no node."}, Fate.STAYS, "stays: There is no node."),
    ],
)  # fmt: skip
def test_fates(over: dict[str, Any], fate: Fate, says: str) -> None:
    one = Drainable(**{"name": "spam r1 in production", "is_wanted": True, "is_stable": False, **over})
    found, sentence = fate_of(one)
    assert found is fate and says in sentence and sentence.startswith("spam r1 in production")
    assert serves_users(one) is (one.is_stable or bool(one.uses))


@pytest.fixture
def stable() -> Deployment:
    return stable_server()


def fates() -> list[Fate]:
    return [step.fate for step in drain_plan(deployments_on(make_node("local")))]


def test_what_serves_users_is_drained_by_nobody_who_has_not_confirmed(stable: Deployment) -> None:
    make_node("other")
    with pytest.raises(Invalid, match="it is started on other") as refused:
        drain_node(actor=make_admin(), node=stable.node, reason="", is_confirmed=False)
    assert refused.value.code == "not_confirmed" and len(refused.value.facts["plan"]) == 1
    with pytest.raises(Invalid, match="Confirm that this is meant"):
        drain_one(actor=make_admin(), deployment=stable, reason="", is_confirmed=False)
    assert Node.objects.get(name="local").cordoned_at is None
    assert not Deployment.objects.exclude(pk=stable.pk).exists()


def test_who_read_of_one_server_has_no_other_of_its_name_drained(stable: Deployment) -> None:
    read = digest_of_drain(drain_plan([stable]))
    twin = make_deployment(stable.release, stable.environment, state="ready", slot=1)
    Deployment.objects.filter(pk=stable.pk).update(state="gone", is_wanted=False)
    (now,) = drain_plan([twin])
    assert digest_of_drain([replace(now, deployment=stable)]) == read  # their sentences are the same
    with pytest.raises(StateChanged) as changed:
        drain_one(actor=make_admin(), deployment=twin, reason="", is_confirmed=False, plan_digest=read)
    assert changed.value.code == "plan_changed"
    with pytest.raises(NotFound):
        drain_one(actor=make_admin(), deployment=stable, reason="", is_confirmed=True)
    assert not Deployment.objects.exclude(drain_asked_at=None).exists()


def test_it_moves_and_stops_only_once_the_other_answers(stable: Deployment) -> None:
    make_node("other")
    admin = make_admin()
    (step,) = drain_node(actor=admin, node=stable.node, reason="New memory.", is_confirmed=True)
    assert step.fate is Fate.MOVES and Node.objects.get(name="local").cordoned_at is not None
    placed = Deployment.objects.get(node="other")
    assert (placed.release, placed.environment, placed.is_wanted) == (stable.release, stable.environment, True)
    for state in ("fetching", "warming", "ready"):  # ready, but its server has not answered yet
        Deployment.objects.filter(pk=placed.pk).update(state=state)
        (again,) = continue_draining(actor=AGENT, node="local")
        stable.refresh_from_db()
        assert again.fate is Fate.MOVES and stable.is_wanted
    assert Deployment.objects.filter(node="other").count() == 1
    make_server(placed)
    (done,) = continue_draining(actor=AGENT, node="local")
    stable.refresh_from_db()
    assert done.fate is Fate.STOPS and not stable.is_wanted and stable.reason == "New memory."
    assert continue_draining(actor=AGENT, node="local") == []
    told = events_of("node", "local").filter(verb="node.drained").get()
    assert told.reason == "New memory." and "is started on other" in told.facts["plan"][0]
    assert events_of("deployment", stable.pk).filter(verb="deployment.drained").count() == 1


def test_where_nothing_else_can_serve_users_it_stays_and_says_why(stable: Deployment) -> None:
    make_node("silent", seen_at=timezone.now() - timedelta(minutes=5))
    make_node("cordoned", cordoned_at=timezone.now())
    make_node("without", runtimes=[])
    (step,) = drain_node(actor=make_admin(), node=stable.node, reason="", is_confirmed=True)
    assert step.fate is Fate.STAYS and "no other node that is about and not cordoned runs it" in step.says
    stable.refresh_from_db()
    assert stable.is_wanted and Deployment.objects.count() == 1
    make_node("late")  # a node that comes later is found by the agent
    assert [one.fate for one in continue_draining(actor=AGENT, node="local")] == [Fate.MOVES]
    assert Deployment.objects.filter(node="late").exists()


def test_a_replacement_that_failed_is_looked_at_by_a_person(stable: Deployment) -> None:
    make_node("other")
    drain_node(actor=make_admin(), node=stable.node, reason="", is_confirmed=True)
    Deployment.objects.filter(node="other").update(state="failed")
    (step,) = continue_draining(actor=AGENT, node="local")
    assert step.fate is Fate.STAYS and "its other deployment failed" in step.says
    assert Deployment.objects.filter(node="other").count() == 1


def test_what_took_its_place_is_seen_where_another_of_its_release_found_no_room() -> None:
    """Fewer stay than are wanted, and yet its slot is taken: a second one must not be placed there."""
    small = {"host": {"memory_mib_min": 4096}, "lifecycle": {"replicas": {"min": 2}}}
    stable = stable_server()
    resealed(stable.release, envelope=small)
    make_deployment(stable.release, stable.environment, state="ready", slot=1)
    make_node("other", facts={"memory_bytes": 5120 << 20})
    drain_node(actor=make_admin(), node=stable.node, reason="", is_confirmed=True)
    placed = Deployment.objects.get(node="other")
    assert placed.slot == stable.slot
    make_node("late")
    steps = continue_draining(actor=AGENT, node="local")
    assert [one.fate for one in steps] == [Fate.MOVES, Fate.MOVES]
    assert "is being started on other" in steps[0].says and "is started on late" in steps[1].says
    staying = Deployment.objects.filter(drain_asked_at=None).order_by("slot")
    assert [(one.slot, one.node_id) for one in staying] == [(0, "other"), (1, "late")]


def test_what_a_rollout_uses_waits_for_its_end() -> None:
    rollout, stable = with_stable()
    make_node("other")
    for release in (stable, rollout.candidate):
        make_server(make_deployment(release, rollout.environment, state="ready"))
    steps = drain_node(actor=make_admin(), node=make_node(), reason="", is_confirmed=True)
    assert [one.fate for one in steps] == [Fate.WAITS, Fate.WAITS] and f"rollout {rollout.pk}" in steps[0].says
    assert continue_placing(actor=AGENT) == []  # else the rollout would compare releases on other nodes than before
    assert Deployment.objects.filter(is_wanted=True).count() == Deployment.objects.count() == 2
    put(rollout, "rolled_back", weight_bp=0, ended_at=timezone.now())
    assert fates() == [Fate.MOVES, Fate.STOPS]
    assert continue_placing(actor=AGENT) == []
    assert Deployment.objects.filter(node="other", release=stable).count() == 1


def test_a_rollout_that_begins_meanwhile_holds_it_up(stable: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan was made before; what is done is decided again under the lock of the routes."""
    idle = make_deployment(make_release(stable.release.model), production(), state="ready")
    plan = drain_plan([idle])
    assert plan[0].fate is Fate.STOPS
    rollout = Rollout.objects.create(
        model=idle.release.model, environment=idle.environment, candidate=idle.release, policy={}, policy_digest="x",
        state="preparing",
    )  # fmt: skip
    monkeypatch.setattr("serving.actions.draining.drain_plan", _first(plan))
    step = drain_one(actor=make_admin(), deployment=idle, reason="", is_confirmed=True)
    idle.refresh_from_db()
    assert step.fate is Fate.WAITS and f"rollout {rollout.pk}" in step.says and idle.is_wanted


def _first(answer: Any) -> Any:
    """`drain_plan` with this answer the first time."""
    answers = [answer]
    return lambda rows: answers.pop() if answers else drain_plan(rows)


def test_one_server_is_drained_and_its_node_goes_on(stable: Deployment) -> None:
    idle = make_deployment(make_release(stable.release.model), production(), state="ready")
    step = drain_one(actor=make_admin(), deployment=idle, reason="unused", is_confirmed=False)
    idle.refresh_from_db()
    stable.refresh_from_db()
    assert step.fate is Fate.STOPS and not idle.is_wanted and stable.is_wanted
    assert Node.objects.get(name="local").cordoned_at is None


def test_a_drain_that_is_asked_for_again_is_told_once(stable: Deployment) -> None:
    """As by somebody who got no answer, before and after it is done."""
    make_node("other")
    admin = make_admin()
    told = events_of("node", "local").filter(verb="node.drained")
    for _ in range(2):
        drain_node(actor=admin, node=stable.node, reason="New memory.", is_confirmed=True)
        drain_one(actor=admin, deployment=stable, reason="New memory.", is_confirmed=True)
    assert told.count() == 1
    make_server(Deployment.objects.get(node="other"))
    continue_draining(actor=AGENT, node="local")
    drain_node(actor=admin, node=stable.node, reason="New memory.", is_confirmed=True)
    assert told.count() == 1


def test_a_drain_of_more_than_before_is_told_again(stable: Deployment) -> None:
    """Of one server, and then of its whole node."""
    make_node("other")
    admin = make_admin()
    drain_one(actor=admin, deployment=stable, reason="Its disk.", is_confirmed=True)
    drain_node(actor=admin, node=stable.node, reason="All of it.", is_confirmed=True)
    told = events_of("node", "local").filter(verb="node.drained")
    assert [one.reason for one in told.order_by("seq")] == ["Its disk.", "All of it."]


def test_uncordoning_keeps_what_has_not_begun_to_stop(stable: Deployment) -> None:
    make_node("other")
    admin = make_admin()
    drain_node(actor=admin, node=stable.node, reason="", is_confirmed=True)
    uncordon_node(actor=admin, node=stable.node, expected_version=2)
    make_server(Deployment.objects.get(node="other"))
    Deployment.objects.filter(node="other").update(state="ready")
    assert continue_draining(actor=AGENT, node="local") == []
    # the release has two deployments there now, and both go when nobody wants it any more
    serves(make_release(stable.release.model))
    release_deployment(actor=admin, release=stable.release, environment=stable.environment, reason="replaced")
    assert not Deployment.objects.filter(release=stable.release, is_wanted=True).exists()


@pytest.mark.parametrize("role", list(Role))
def test_only_an_administrator_drains(role: Role, stable: Deployment) -> None:
    actor = make_actor(role)
    with pytest.raises(Refused):
        drain_node(actor=actor, node=stable.node, reason="", is_confirmed=True)
    with pytest.raises(Refused):
        drain_one(actor=actor, deployment=stable, reason="", is_confirmed=True)
    with pytest.raises(Refused):
        continue_draining(actor=actor, node="local")
    member = signed_in(make_user("ana", team="search", role=role))
    address = reverse("fleet_drain", args=["local"])
    assert (
        member.get(address).status_code == member.post(address, {"confirmed": "yes", "version": "1"}).status_code == 403
    )
    assert member.get("/api/v1/nodes/local/drain").status_code == 403
    stable.refresh_from_db()
    assert stable.drain_asked_at is None


def test_the_page_says_what_will_happen_and_asks_before_it_touches_users(stable: Deployment) -> None:
    make_node("other")
    client = signed_in(make_user("root", is_admin=True))
    address = reverse("fleet_drain", args=["local"])
    page = squeezed(client.get(address).content.decode())
    assert "it is started on other" in page and 'name="confirmed" value="yes" required' in page
    assert "Drain local…" in squeezed(client.get(reverse("fleet")).content.decode())
    refused = client.post(address, {"version": "1", "reason": HOSTILE})
    text = squeezed(refused.content.decode())
    assert refused.status_code == 422 and "not_confirmed" in text and "<script>alert" not in text
    assert client.post(address, {"version": "9", "confirmed": "yes"}).status_code == 412
    assert client.post(address, {"confirmed": "yes"}).status_code == 422
    assert not Deployment.objects.filter(drain_asked_at__isnull=False).exists()
    done = client.post(address, {"version": "1", "confirmed": "yes", "reason": "Memory."}, follow=True)
    fleet = squeezed(done.content.decode())
    assert "local is being drained. 1 of 1 stays until it can go." in fleet and "what holds it up" in fleet
    again = squeezed(client.get(address).content.decode())
    assert "is being started on other" in again and "Memory." in again
    for query in ("?deployment=999999", "?deployment=x", f"?deployment={'9' * 30}"):
        assert client.get(address + query).status_code == 404
    assert client.get(reverse("fleet_drain", args=["none"])).status_code == 404


def test_the_api_tells_the_plan_and_drains(stable: Deployment) -> None:
    client, address = signed_in(make_user("root", is_admin=True)), "/api/v1/nodes/local/drain"
    make_node("other")
    (step,) = client.get(address).json()["steps"]
    assert step["fate"] == "moves" and step["serves_users"] and step["deployment"] == stable.pk
    asked: dict[str, Any] = {"content_type": "application/json", "headers": {"If-Match": "*"}}
    assert client.post(address, {}, **asked).json()["code"] == "not_confirmed"
    assert client.post(address, {"deployment": 10**9}, **asked).status_code == 404
    (step,) = client.post(address, {"is_confirmed": True, "deployment": stable.pk}, **asked).json()["steps"]
    assert step["fate"] == "moves" and Node.objects.get(name="local").cordoned_at is None
    assert client.post(address, {"is_confirmed": True}, **asked).status_code == 200
    (node,) = [one for one in client.get("/api/v1/nodes").json()["results"] if one["name"] == "local"]
    assert node["state"] == "cordoned" and node["deployments"][0]["drain_asked_at"] is not None


def test_a_plan_asks_as_much_for_many_as_for_one(stable: Deployment, django_assert_max_num_queries: Any) -> None:
    for _ in range(20):
        make_server(make_deployment(make_release(stable.release.model), production(), state="ready"))
    with django_assert_max_num_queries(12):
        assert len(fates()) == 21
