"""Who hears of an event on a stream is who sees it in the log."""

from __future__ import annotations

import itertools

import pytest

from accounts.actions import actor_for
from accounts.core.access import Actor
from audit.queries import audience_of, happening_of, happening_rows, visible_events
from ledger.actions import append_event
from ledger.models import Event
from tests.support.worlds.factories import make_admin, make_model, make_team, make_user

pytestmark = pytest.mark.django_db

#: How actions name a model or a team in an event.
SUBJECTS = [
    ("model.changed", "model", "{model}", {}),
    ("rollout.held", "rollout", "7", {"model": "{model}", "candidate": "r2", "stable": "r1"}),
    ("rollout.held", "rollout", "7", {"model": "{model}", "candidate": "r2", "stable": None}),
    ("release.sealed", "release", "9", {"model": "{model}", "number": 3}),
    ("webhook.created", "webhook", "1", {"team": "{team}"}),
    ("webhook.created", "webhook", "1", {"team": None}),
    ("node.registered", "node", "local", {}),
    ("role.granted", "user", "ann", {"team": "{team}"}),
]


def test_the_stream_and_the_log_agree_on_who_may_know() -> None:
    mine, theirs = make_model("mine", team=make_team("search")), make_model("theirs", team=make_team("ads"))
    ann, admin = make_user("ann", team="search"), make_admin()
    outsider = actor_for(make_user("nobody"))
    for (verb, kind, subject, facts), model, by in itertools.product(SUBJECTS, (mine, theirs), ("ann", "bob")):
        named = {"model": model.slug, "team": model.team.slug}
        told = {name: value.format(**named) if isinstance(value, str) else value for name, value in facts.items()}
        append_event(verb=verb, subject_type=kind, subject_id=subject.format(**named), actor=Actor(by), facts=told)
    happenings = [happening_of(row) for row in happening_rows(0)]
    assert [one.seq for one in happenings] == list(Event.objects.order_by("seq").values_list("seq", flat=True))
    for actor in (actor_for(ann), admin, outsider, Actor.system("engine")):
        audience = audience_of(actor)
        seen = set(visible_events(actor).values_list("seq", flat=True))
        assert {one.seq for one in happenings if audience.sees(one)} == seen, actor.name


def test_an_event_names_the_releases_that_it_concerns() -> None:
    system = Actor.system("engine")
    for verb, facts in (
        ("rollout.held", {"candidate": "r2", "stable": "r1"}), ("release.sealed", {"number": 3}),
        ("release.drafted", {"release": "draft"}), ("gate.judged", {"release": "r4"}),
    ):  # fmt: skip
        append_event(verb=verb, subject_type="x", subject_id=1, actor=system, facts={"model": "m", **facts})
    assert [happening_of(row).releases for row in happening_rows(0)] == [("r2", "r1"), ("r3",), (), ("r4",)]
    assert [happening_of(row).releases for row in happening_rows(1, 2)] == [("r3",)]
