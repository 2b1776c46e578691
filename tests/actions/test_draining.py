"""Draining replicas: which stop, wait and stay."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor
from rollouts.models import Rollout
from serving.environments.queries.inventory import live_replicas
from serving.models import Replica
from serving.targets.actions.draining import continue_draining
from serving.targets.actions.replicas import continue_placing
from serving.targets.queries.draining import may_stop
from tests.support.worlds.factories import (
    events_of,
    make_node,
    make_release,
    make_replica,
    make_server,
)
from tests.support.worlds.rollout_setup import production, put, stable_server, with_stable

pytestmark = pytest.mark.django_db
AGENT = Actor.system("agent:local")


@pytest.fixture
def stable() -> Replica:
    return stable_server()


def drained(*replicas: Replica) -> None:
    """Each of these has given its ordinal away."""
    keys = [one.pk for one in replicas]
    Replica.objects.filter(pk__in=keys).update(drain_asked_at=timezone.now(), drain_reason="New memory.")


def stopped(one: Replica) -> bool:
    """Whether the replica is no longer wanted after the agent's next look."""
    continue_draining(actor=AGENT, node="local")
    one.refresh_from_db()
    return not one.is_wanted


def test_it_stops_only_once_the_other_answers(stable: Replica) -> None:
    make_node("other")
    drained(stable)
    assert continue_placing(actor=AGENT) == []
    placed = Replica.objects.get(node="other")
    assert (placed.release, placed.ordinal, placed.is_wanted) == (stable.release, stable.ordinal, True)
    for state in ("fetching", "warming", "ready"):  # ready, but its server has not answered yet
        Replica.objects.filter(pk=placed.pk).update(state=state)
        assert not stopped(stable)
    make_server(placed)
    assert stopped(stable) and stable.reason == "New memory."
    assert events_of("deployment", stable.pk).filter(verb="deployment.drained").count() == 1


def test_a_replica_of_stable_stays_if_nothing_else_can_serve_users(stable: Replica) -> None:
    make_node("silent", seen_at=timezone.now() - timedelta(minutes=5))
    drained(stable)
    assert not stopped(stable)


def test_what_nothing_needs_stops_at_once(stable: Replica) -> None:
    idle = make_replica(make_release(stable.release.model), production(), state="ready")
    drained(idle)
    assert stopped(idle)


def test_what_a_rollout_uses_waits_for_its_end() -> None:
    rollout, stable = with_stable()
    make_node("other")
    both = [make_replica(release, rollout.environment, state="ready") for release in (stable, rollout.candidate)]
    for one in both:
        make_server(one)
    drained(*both)
    assert not any(stopped(one) for one in both)
    assert continue_placing(actor=AGENT) == []  # else the rollout would compare releases on other nodes than before
    assert Replica.objects.filter(is_wanted=True).count() == Replica.objects.count() == 2
    put(rollout, "rolled_back", weight_bp=0, ended_at=timezone.now())
    assert [stopped(one) for one in both] == [False, True]
    assert continue_placing(actor=AGENT) == []
    assert Replica.objects.filter(node="other", release=stable).count() == 1


def test_a_rollout_that_begins_meanwhile_holds_it_up(stable: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is applied again under the lock of the routes."""
    idle = make_replica(make_release(stable.release.model), production(), state="ready")
    drained(idle)
    answers = [[idle]]
    assert may_stop([idle]) == [idle]
    Rollout.objects.create(
        model=idle.release.model, environment=idle.environment, candidate=idle.release, policy={}, policy_digest="x",
        state="preparing",
    )  # fmt: skip
    monkeypatch.setattr(
        "serving.targets.actions.draining.may_stop", lambda rows: answers.pop() if answers else may_stop(rows)
    )
    assert not stopped(idle) and not answers


def test_it_asks_as_much_for_many_as_for_one(stable: Replica, django_assert_max_num_queries: Any) -> None:
    for _ in range(20):
        make_server(make_replica(make_release(stable.release.model), production(), state="ready"))
    drained(*Replica.objects.all())
    with django_assert_max_num_queries(12):
        assert len(may_stop(live_replicas().filter(node="local"))) == 20
