"""A query that is written as SQL once answers as Django's own does, whoever asks and whenever."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef, QuerySet
from django.db.models.functions import JSONObject, Upper

from accounts.models import Membership, User
from ledger.queries import statements
from ledger.queries.statements import Statement
from registry.models import Release
from tests.factories import make_release, make_user

pytestmark = pytest.mark.django_db

DAY = datetime(2026, 3, 1, tzinfo=UTC)


def joined(names: frozenset[str] | None, user: int, since: datetime) -> QuerySet[User, tuple[Any, ...]]:
    roles = Membership.objects.filter(user=OuterRef("pk")).values(row=JSONObject(role="role"))
    rows = User.objects.filter(pk=user, date_joined__gt=since)
    return (rows if names is None else rows.filter(username__in=names)).values_list("username", ArraySubquery(roles))


def test_it_answers_as_the_query_does_for_other_values_and_other_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "MOST_SHAPES", 2)
    people = [make_user("ada", team="search"), make_user("bob", team="search")]
    User.objects.update(date_joined=DAY)
    statement = Statement(joined)
    for names in (None, frozenset({"ada"}), frozenset({"bob"}), frozenset({"ada", "bob"}), None):
        for user in people:
            for since in (DAY - timedelta(days=1), DAY):
                given = {"user": user.pk, "since": since}
                assert statement.rows(names, **given) == list(joined(names, **given))


def test_it_is_written_once() -> None:
    written = []

    def one(user: int) -> QuerySet[User, tuple[Any, ...]]:
        written.append(user)
        return User.objects.filter(pk=user).values_list("username")

    statement, ada = Statement(one), make_user("ada")
    assert [statement.rows(user=ada.pk) for _ in range(3)] == [[("ada",)]] * 3
    assert statement.rows(user=ada.pk + 1) == [] and len(written) == 1


def test_a_value_that_the_query_does_not_take_is_refused() -> None:
    statement = Statement(lambda user: User.objects.values_list("username"))
    with pytest.raises(ValueError, match="does not take user"):
        statement.rows(user=1)


def test_it_makes_instances_with_what_they_are_joined_to_and_annotated_with(django_assert_num_queries: Any) -> None:
    ada = make_user("ada", team="search")
    User.objects.update(date_joined=DAY)

    def held(user: int, since: datetime) -> QuerySet[Membership]:
        rows = Membership.objects.filter(user=user, user__date_joined__gte=since).select_related("user", "team")
        return rows.annotate(shout=Upper("team__slug"))

    statement = Statement(held)
    for _ in range(2):
        with django_assert_num_queries(1):
            found = statement.rows(user=ada.pk, since=DAY)
            seen = [(one, one.user.username, one.team and one.team.slug, one.shout, one._state.adding) for one in found]
        assert seen == [(one, "ada", "search", "SEARCH", False) for one in held(ada.pk, DAY)] and len(seen) == 1
    assert statement.rows(user=ada.pk + 1, since=DAY) == []


def test_a_uuid_is_a_value_too() -> None:
    statement = Statement(lambda release: Release.objects.filter(pk=release).values_list("number"))
    first, second = make_release(), make_release()
    assert [statement.rows(release=one.pk) for one in (first, second)] == [[(first.number,)], [(second.number,)]]


def test_of_what_nothing_fits_there_is_nothing_to_ask(django_assert_num_queries: Any) -> None:
    statement = Statement(lambda names: User.objects.filter(username__in=names))
    with django_assert_num_queries(0):
        assert statement.rows(frozenset()) == []


def test_a_text_is_a_value_too_and_each_thread_asks_over_its_own_connection() -> None:
    from threading import Thread

    statement = Statement(lambda name: User.objects.filter(username=name).values_list("username"))
    make_user("ada")
    assert statement.rows(name="ada") == [("ada",)] and statement.rows(name="nobody") == []
    seen: list[object] = []

    def ask() -> None:
        from django.db import connection

        seen.append(statement.rows(name="nobody"))
        seen.append(connection.connection is not None)
        connection.close()

    thread = Thread(target=ask)
    thread.start()
    thread.join()
    assert seen == [[], True]


def test_a_number_of_a_narrow_column_is_a_value_too() -> None:
    statement = Statement(
        lambda slug, number: Release.objects.filter(model__slug=slug, number=number).values_list("pk")
    )
    first = make_release()
    for number, found in ((first.number, [(first.pk,)]), (77, []), (first.number, [(first.pk,)])):
        assert statement.rows(slug=first.model.slug, number=number) == found
