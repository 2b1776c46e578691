"""Mirrored requests that a model's policy allows to keep: how many, for how long, what becomes of them, and who may read them."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.actions import actor_for
from accounts.core.access import Actor, Role
from ledger.core.errors import NotFound, Refused
from ledger.models import Event
from registry.models import ServedModel
from tests.support.worlds.factories import make_team, make_user
from tests.support.worlds.prober_setup import World, body_of, make_world  # noqa: F401
from validators.actions import add_golden_set, draft_golden_set, forget_old_requests, forget_requests
from validators.models import KeptRequest
from validators.queries.kept_requests import kept_of

pytestmark = pytest.mark.django_db
#: Numbers are expected, since the answers are no classes.
VALUES = {"golden": {"compare": "largest_relative_error"}}


@pytest.fixture
def keeping(make_world: Callable[..., World]) -> Callable[..., World]:
    def make(**allowed: Any) -> World:
        world = make_world(gate_policy=VALUES | ({"kept_requests": allowed} if allowed else {}))
        assert world.prober.turn()
        return world

    return make


def change(world: World, **allowed: Any) -> None:
    ServedModel.objects.update(gate_policy=VALUES | ({"kept_requests": allowed} if allowed else {}))
    world.model.refresh_from_db()


def kept() -> list[Any]:
    return sorted(row.inputs["x"][0] for row in KeptRequest.objects.all())


def member(role: Role = Role.MODEL_TEAM) -> Actor:
    return actor_for(make_user(team=ServedModel.objects.select_related("team").get().team, role=role))


def test_no_request_is_kept_of_a_model_that_does_not_allow_it(keeping: Callable[..., World]) -> None:
    world = keeping()
    world.ask(*(body_of(n) for n in range(5)))
    world.prober.turn()
    assert world.tally() == (5, 0, 5, 0) and not KeptRequest.objects.exists()


def test_as_many_distinct_requests_are_kept_as_it_allows_with_stables_answers(keeping: Callable[..., World]) -> None:
    world = keeping(most=4)
    world.ask(*(body_of(n) for n in (*range(10), 1, 1, 1)))
    world.prober.turn()
    first = kept()
    assert len(first) == 4 == len(set(first))
    row = KeptRequest.objects.first()
    assert row is not None and row.release == "r1" and row.answers["y"] == [2 * value for value in row.inputs["x"]]
    world.ask(*(body_of(n) for n in reversed(range(10))))
    world.prober.turn()
    assert kept() == first  # which they are depends on no order


def test_what_stable_answers_otherwise_the_next_time_or_not_at_all_is_not_kept(keeping: Callable[..., World]) -> None:
    world, answers = keeping(most=10), iter(range(100))
    world.stable_model.compute = lambda arrays: {"y": arrays["x"] + next(answers)}
    world.ask(body_of(1), body_of(2))
    world.stable_model.breaks = ValueError("no")
    world.ask(body_of(3))
    world.prober.turn()
    assert kept() == []


def test_a_policy_that_allows_less_counts_at_once(keeping: Callable[..., World]) -> None:
    world = keeping(most=10)
    world.ask(*(body_of(n) for n in range(6)))
    world.prober.turn()
    change(world, most=2)
    forget_old_requests()
    assert len(kept()) == 2
    world.ask(body_of(7))  # taken in under the old word, written under the new one
    change(world)
    world.prober.turn()
    forget_old_requests()
    assert kept() == []


def test_requests_are_forgotten_by_age_and_by_command(keeping: Callable[..., World]) -> None:
    world = keeping(most=10, max_age_days=2)
    world.ask(*(body_of(n) for n in range(3)))
    world.prober.turn()
    KeptRequest.objects.filter(inputs__x__0=1.0).update(at=timezone.now() - timedelta(days=2, minutes=1))
    forget_old_requests()
    assert kept() == [0.0, 2.0]
    with pytest.raises(Refused):
        forget_requests(actor=member(Role.CI), model=world.model)
    assert forget_requests(actor=member(), model=world.model) == 2
    assert kept_of(world.model)["requests"] == 0
    assert Event.objects.get(verb="kept_requests.forgotten").facts == {"requests": 2}


def test_a_draft_is_read_by_the_team_alone_and_added_by_a_person(keeping: Callable[..., World]) -> None:
    world = keeping(most=10)
    with pytest.raises(NotFound, match="State kept_requests"):
        draft_golden_set(actor=member(), model=world.model)
    world.ask(*(body_of(n) for n in range(3)))
    world.prober.turn()
    for stranger in (member(Role.VIEWER), member(Role.CI), actor_for(make_user("eve", team=make_team("ads")))):
        with pytest.raises(Refused):
            draft_golden_set(actor=stranger, model=world.model)
    with pytest.raises(Refused, match="for a person to read"):
        draft_golden_set(actor=Actor.system("engine"), model=world.model)
    ours = member()
    made = draft_golden_set(actor=ours, model=world.model)
    items = [json.loads(line) for line in made.lines.splitlines()]
    assert made.baseline == "r1" and sorted(item["expected"]["y"][0] for item in items) == [0.0, 2.0, 4.0]
    assert not world.model.golden_sets.exists()
    event = Event.objects.get(verb="kept_requests.drafted")
    assert event.facts["items"] == 3 and "inputs" not in event.facts
    added, _ = add_golden_set(actor=ours, model=world.model, data=made.lines)
    assert (added.items, added.digest) == (3, event.facts["digest"])
