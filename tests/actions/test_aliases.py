"""Aliases: pointers that move from what was seen, and whose every move is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.core.errors import Invalid, PreconditionRequired, Refused, Stale, StateChanged
from ledger.models import Event
from registry import actions
from registry.models import Alias, AliasEvent, Release, ServedModel
from tests.support.worlds.factories import make_actor, make_model, make_release
from tests.support.worlds.registry_samples import developer, served_model

pytestmark = pytest.mark.django_db


@pytest.fixture
def dev() -> Actor:
    return developer()


@pytest.fixture
def model(dev: Actor) -> ServedModel:
    return served_model(dev)


@pytest.fixture
def releases(model: ServedModel) -> list[Release]:
    return [make_release(model) for _ in range(3)]


def point(
    dev: Actor, release: Release | None, seen: int | None, model: ServedModel | None = None, **over: Any
) -> Alias:
    to = model or (release.model if release else None)
    assert to is not None
    said = {"name": "champion", "reason": "it is better", **over}
    return actions.set_alias(actor=dev, model=to, release=release, expected_version=seen, **said)


def test_an_alias_moves_from_what_was_seen(dev: Actor, model: ServedModel, releases: list[Release]) -> None:
    one, two, _ = releases
    assert point(dev, one, None).version == 1
    with pytest.raises(PreconditionRequired, match="at version 1"):
        point(dev, two, None)
    with pytest.raises(Stale, match="at version 1, not 0"):
        point(dev, two, 0)
    assert point(dev, two, 1).version == 2
    with pytest.raises(Stale, match="at version 2, not 1"):
        point(dev, one, 1)
    assert point(dev, two, 2).version == 2  # there already
    assert point(dev, None, 2, model).release is None
    assert point(dev, one, 3).version == 4
    moves = AliasEvent.objects.order_by("version")
    assert [(m.from_release, m.to_release) for m in moves] == [(None, one), (one, two), (two, None), (None, one)]
    told = Event.objects.filter(subject_type="alias").order_by("seq")
    assert [(e.verb, e.from_state, e.to_state) for e in told] == [
        ("alias.set", "", "r1"), ("alias.set", "r1", "r2"), ("alias.cleared", "r2", ""), ("alias.set", "", "r1"),
    ]  # fmt: skip
    assert {e.subject_id for e in told} == {"sentiment/champion"} and told[0].facts["digest"] == one.digest


MISLEADING = ["latest", "newest", "stable", "candidate", "draft", "none", "r1", "r007", "7"]
MALFORMED = ["Champion", "a_b", "-a", "a-", "", "a" * 41, "é"]


@pytest.mark.parametrize("name", MISLEADING + MALFORMED)
def test_names_that_would_mislead_are_refused(dev: Actor, releases: list[Release], name: str) -> None:
    with pytest.raises(Invalid) as refused:
        point(dev, releases[0], None, name=name)
    assert refused.value.facts["errors"][0]["field"] == "name"


@pytest.mark.parametrize("name", ["champion", "a", "blue-2", "rc1", "r"])
def test_other_names_are_taken(dev: Actor, releases: list[Release], name: str) -> None:
    assert point(dev, releases[0], 0, name=name).name == name


def test_who_may_and_to_what(dev: Actor, model: ServedModel, releases: list[Release]) -> None:
    with pytest.raises(Refused):
        point(make_actor(Role.CI, team="vision"), releases[0], None)
    assert point(make_actor(Role.RELEASE_MANAGER, team="vision"), releases[0], None).version == 1
    with pytest.raises(Invalid, match="another model"):
        point(dev, make_release(make_model("other")), None, model, name="best")
    with pytest.raises(StateChanged, match="nothing to clear"):
        point(dev, None, None, model, name="best")
    retired = releases[1]
    Release.objects.filter(pk=retired.pk).update(state="retired", retired_at=timezone.now())
    with pytest.raises(StateChanged, match="only a sealed release can have an alias"):
        point(dev, retired, 1)


def test_the_database_refuses_every_other_way(dev: Actor, releases: list[Release]) -> None:
    alias = point(dev, releases[0], None)
    connection.check_constraints()
    for attempt in (
        lambda: Alias.objects.update(release=releases[1]),  # no new version
        lambda: Alias.objects.update(release=releases[1], version=2),  # no event
        lambda: Alias.objects.update(release=releases[1], version=3),
        lambda: Alias.objects.update(name="other", version=2),
        lambda: Alias.objects.create(model=alias.model, name="silent", release=releases[0], changed_at=timezone.now()),
        lambda: alias.delete(),
        lambda: Alias.objects.all()._raw_delete("default"),
        lambda: AliasEvent.objects.update(actor="nobody"),
        lambda: AliasEvent.objects.all().delete(),
        lambda: _sql("TRUNCATE registry_alias CASCADE"),
        lambda: _sql("TRUNCATE registry_aliasevent"),
    ):
        with pytest.raises(IntegrityError):
            _checked(attempt)
    alias.refresh_from_db()
    assert (alias.release, alias.version) == (releases[0], 1)


def _checked(attempt: Callable[[], Any]) -> None:
    with transaction.atomic():
        attempt()
        connection.check_constraints()


def _sql(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text)


@pytest.mark.django_db(transaction=True)
def test_of_two_who_saw_the_same_one_wins() -> None:
    from tests.support.worlds.registry_setup import race

    dev = developer()
    model = served_model(dev)
    one, two = make_release(model), make_release(model)
    results = race(lambda: point(dev, one, 0), lambda: point(dev, two, 0))
    assert sorted(type(result).__name__ for result in results) == ["Alias", "Stale"]
    assert AliasEvent.objects.count() == 1
