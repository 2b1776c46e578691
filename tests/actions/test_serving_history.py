"""What served when, at which weights, and why: told from the log, whatever the routes say today."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from accounts.models import User
from ledger.core.errors import Invalid, NotFound
from ledger.models import Event
from ledger.queries import clock
from ledger.queries.chain_verification import verify_chain
from registry.models import Release
from rollouts.actions.retiring import remove_environment
from rollouts.models import DecisionRecord, Observation, Rollout
from rollouts.queries.serving_history import ServedArm, changes_between, served_among, served_at
from serving.models import Environment
from serving.traffic.actions.routes import set_route
from tests.support.worlds.factories import make_admin, make_environment, make_model, make_release, make_team, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def production() -> Environment:
    return make_environment("production")


def instant() -> datetime:
    """An instant that is neither that of the event before nor that of the next one."""
    time.sleep(0.002)
    at = clock.now()
    time.sleep(0.002)
    return at


def story(where: Environment, slug: str = "sentiment", team: str = "demo") -> tuple[list[Release], list[datetime]]:
    """r1 alone; r2 at 5 % with mirroring; r2 at 0 %; r2 alone. And the instants before, between and after."""
    model = make_model(slug, team=make_team(team))
    one, two = make_release(model), make_release(model)
    admin, instants = make_admin(f"root-{slug}"), [instant()]
    for reason, columns in (
        ("the first", {"stable": one}),
        ("step 1", {"stable": one, "candidate": two, "candidate_bp": 500, "mirror_bp": 1000}),
        ("errors are worse", {"stable": one, "candidate": two, "candidate_bp": 0}),
        ("promoted after all", {"stable": two}),
    ):
        set_route(actor=admin, environment=where, model=model, reason=reason, **columns)  # type: ignore[arg-type]
        instants.append(instant())
    return [one, two], instants


def test_every_instant_has_its_answer(production: Environment) -> None:
    (one, two), (before, first, split, back, last) = story(production)
    model = one.model
    r1, r2 = one.digest or "", two.digest or ""
    nothing = served_at(model, production, before)
    assert nothing.arms == () and nothing.since is None and nothing.until is not None
    assert served_at(model, production, first).arms == (ServedArm("stable", "r1", r1, 100.0),)
    found = served_at(model, production, split)
    assert found.arms == (ServedArm("stable", "r1", r1, 95.0), ServedArm("candidate", "r2", r2, 5.0))
    assert (found.mirrored_pct, found.reason, found.actor) == (10.0, "step 1", "root-sentiment")
    assert found.since is not None and found.until is not None and found.since < split < found.until < back
    assert [arm.weight_pct for arm in served_at(model, production, back).arms] == [100.0, 0.0]
    end = served_at(model, production, last)
    assert (end.arms, end.until) == ((ServedArm("stable", "r2", r2, 100.0),), None)
    assert served_at(model, production).arms == end.arms


def test_the_changes_around_an_instant_give_the_same_answer(production: Environment) -> None:
    """For every window around the instant."""
    (one, _), instants = story(production)
    asked = 0
    for at in instants:
        for begin in (begin for begin in instants if begin <= at):
            for end in (end for end in instants if end >= at):
                changes, is_cut, after = changes_between(one.model, production, begin, end, 10)
                assert not is_cut
                assert served_among(one.model, production, at, changes, after) == served_at(one.model, production, at)
                asked += 1
    assert asked == 35
    changes, is_cut, after = changes_between(one.model, production, instants[0], instants[-2], 2)
    assert is_cut and len(changes) == 2 and after is not None and instants[-2] < after < instants[-1]


def test_an_instant_belongs_to_the_change_that_it_is(production: Environment) -> None:
    (one, _), (_, _, split, *_) = story(production)
    found = served_at(one.model, production, split)
    assert found.since is not None and found.until is not None
    assert served_at(one.model, production, found.since).reason == "step 1"
    assert served_at(one.model, production, found.since - timedelta(microseconds=1)).reason == "the first"
    assert served_at(one.model, production, found.until).reason == "errors are worse"


def test_other_models_and_environments_are_not_mixed_in(production: Environment) -> None:
    (one, _), (_, _, split, *_) = story(production)
    other = make_environment("shadow")
    story(other, "ranking")
    assert served_at(one.model, other, split).arms == ()
    assert served_at(one.model, production, split).reason == "step 1"


def test_the_future_is_not_told(production: Environment) -> None:
    (one, _), _ = story(production)
    with pytest.raises(Invalid, match="yet to come"):
        served_at(one.model, production, timezone.now() + timedelta(hours=1))


def test_the_rollout_and_its_decision_tell_why(production: Environment) -> None:
    (one, two), (_, first, split, back, last) = story(production)
    rollout = Rollout.objects.create(
        model=one.model, environment=production, candidate=two, stable=one, policy={}, policy_digest="sha256:p",
        state="rolled_back",
    )  # fmt: skip
    Rollout.objects.filter(pk=rollout.pk).update(created_at=first, ended_at=last)
    for at, action, reason in ((split, "advance", "fine so far"), (back, "roll_back", "errors are worse")):
        DecisionRecord.objects.create(rollout=rollout, at=at, action=action, reason=reason, actor="system:engine")
    seen: dict[str, Any] = {"first_tick": 1, "tick": 9, "state": "shifting", "weight_bp": 500, "evidence": {}}
    counts = {"candidate": {"attempts": 6, "routed": 6, "bad": {}}, "stable": {"attempts": 94, "routed": 94, "bad": {}}}
    Observation.objects.create(
        rollout=rollout,
        from_at=split - timedelta(milliseconds=1),
        at=split + timedelta(milliseconds=1),
        **seen,
        **counts,
    )
    found = served_at(one.model, production, split)
    assert found.rollout is not None and found.observed is not None
    assert (found.rollout["id"], found.rollout["under_way"]) == (rollout.pk, True)
    assert found.rollout["decision"]["reason"] == "fine so far"
    assert found.observed["candidate_pct"] == 6.0 and found.observed["requests"] == {"candidate": 6, "stable": 94}
    later = served_at(one.model, production, back)
    assert later.rollout is not None and later.rollout["decision"]["action"] == "roll_back" and later.observed is None
    after = served_at(one.model, production)
    assert after.rollout is not None and after.rollout["under_way"] is False
    assert served_at(one.model, production, first - timedelta(microseconds=1)).rollout is None


def test_a_forged_event_is_told(production: Environment) -> None:
    (one, _), (_, _, split, *_) = story(production)
    found = served_at(one.model, production, split)
    assert found.event is not None and found.event["is_intact"]
    with connection.cursor() as cursor:  # as somebody would who owns the database
        cursor.execute("ALTER TABLE ledger_event DISABLE TRIGGER USER")
        cursor.execute(
            "UPDATE ledger_event SET facts = jsonb_set(facts, '{candidate_bp}', '0') WHERE seq = %s",
            [found.event["seq"]],
        )
        cursor.execute("ALTER TABLE ledger_event ENABLE TRIGGER USER")
    forged = served_at(one.model, production, split)
    assert forged.event is not None and not forged.event["is_intact"]
    assert verify_chain().broken_at == found.event["seq"]


def test_one_call(production: Environment, api: Any) -> None:
    _, (before, _, split, *_) = story(production)
    here = "/api/v1/environments/production/models/sentiment/served"
    ada, zoe = api(make_user("ada", team="demo")), api(User.objects.create(username="zoe"))
    told = ada.get(here, {"at": split.isoformat()}).json()
    assert told["reason"] == "step 1"
    assert [(arm["release"], arm["weight_pct"]) for arm in told["arms"]] == [("r1", 95.0), ("r2", 5.0)]
    assert told["event"]["seq"] == Event.objects.get(verb="route.set", reason="step 1").seq
    assert ada.get(f"{here}?at={split.isoformat()}").status_code == 200  # with the plus sign as curl sends it
    assert ada.get(here, {"at": "yesterday"}).status_code == 422
    assert ada.get(here, {"at": before.isoformat()}).json()["arms"] == []
    for long_ago in ("2h", "2026-03-01T12:00:00"):
        assert ada.get(here, {"at": long_ago}).json()["arms"] == []
    assert ada.get("/api/v1/environments/nowhere/models/sentiment/served").status_code == 404
    assert zoe.get(here).status_code == 404 and zoe.get(f"{here}/history").status_code == 404
    reasons = [move["reason"] for move in ada.get(f"{here}/history", {"page_size": 2}).json()["results"]]
    assert reasons == ["promoted after all", "errors are worse"]
    assert len(ada.get(f"{here}/history").json()["results"]) == 4


def test_nothing_is_routed_any_more(production: Environment, api: Any) -> None:
    story(production)
    otto = make_admin("otto")
    remove_environment(actor=otto, environment=production, reason="moved to eu", is_confirmed=True)
    told = api(User.objects.get(username="otto")).get("/api/v1/environments/production/models/sentiment/served").json()
    assert (told["arms"], told["until"], told["reason"], told["actor"]) == ([], None, "moved to eu", "otto")
    assert told["event"]["is_intact"]


def test_an_unknown_environment_says_which_there_are(production: Environment) -> None:
    from serving.targets.queries import get_environment

    with pytest.raises(NotFound, match="there are production"):
        get_environment("nowhere")
