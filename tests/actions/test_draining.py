"""Draining replicas: what stops, what moves first, what waits, and what stays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import QuerySet
from django.utils import timezone

from accounts.core.access import Actor
from rollouts.models import Rollout
from serving.actions.draining import continue_draining
from serving.actions.replicas import continue_placing
from serving.core.draining import Drainable, Fate, fate_of, serves_users
from serving.models import Deployment
from serving.queries.deployments import live_deployments
from serving.queries.draining import DrainStep, drain_plan
from tests.support.worlds.factories import (
    events_of,
    make_deployment,
    make_node,
    make_release,
    make_server,
    resealed,
)
from tests.support.worlds.rollout_setup import production, put, stable_server, with_stable

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


def there() -> QuerySet[Deployment]:
    return live_deployments().filter(node="local").order_by("pk")


def fates() -> list[Fate]:
    return [step.fate for step in drain_plan(there())]


def asked(reason: str = "New memory.") -> list[DrainStep]:
    """The steps of the agent once all deployments there are to be drained."""
    there().filter(drain_asked_at=None).update(drain_asked_at=timezone.now(), drain_reason=reason)
    return continue_draining(actor=AGENT, node="local")


def test_it_moves_and_stops_only_once_the_other_answers(stable: Deployment) -> None:
    make_node("other")
    (step,) = asked()
    assert step.fate is Fate.MOVES
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
    assert events_of("deployment", stable.pk).filter(verb="deployment.drained").count() == 1


def test_where_nothing_else_can_serve_users_it_stays_and_says_why(stable: Deployment) -> None:
    make_node("silent", seen_at=timezone.now() - timedelta(minutes=5))
    make_node("removed", removed_at=timezone.now())
    make_node("without", runtimes=[])
    (step,) = asked()
    assert step.fate is Fate.STAYS and "no other server runs it" in step.says
    stable.refresh_from_db()
    assert stable.is_wanted and Deployment.objects.count() == 1
    make_node("late")  # a node that comes later is found by the agent
    assert [one.fate for one in continue_draining(actor=AGENT, node="local")] == [Fate.MOVES]
    assert Deployment.objects.filter(node="late").exists()


def test_a_replacement_that_failed_is_looked_at_by_a_person(stable: Deployment) -> None:
    make_node("other")
    asked()
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
    asked()
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
    steps = asked()
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
    Deployment.objects.filter(pk=idle.pk).update(drain_asked_at=timezone.now())
    (step,) = continue_draining(actor=AGENT, node="local")
    idle.refresh_from_db()
    assert step.fate is Fate.WAITS and f"rollout {rollout.pk}" in step.says and idle.is_wanted


def _first(answer: Any) -> Any:
    """`drain_plan` with this answer the first time."""
    answers = [answer]
    return lambda rows: answers.pop() if answers else drain_plan(rows)


def test_a_plan_asks_as_much_for_many_as_for_one(stable: Deployment, django_assert_max_num_queries: Any) -> None:
    for _ in range(20):
        make_server(make_deployment(make_release(stable.release.model), production(), state="ready"))
    with django_assert_max_num_queries(12):
        assert len(fates()) == 21
