"""A database that does nothing for a moment: pages say what the API says of it, and ask it nothing to say so."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import InterfaceError, InternalError, OperationalError, connection
from django.urls import reverse
from psycopg.errors import DeadlockDetected, IdleInTransactionSessionTimeout, LockNotAvailable, ReadOnlySqlTransaction

from tests.pages.clients import signed_in
from tests.support.worlds.factories import make_user

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("raised", "cause"),
    [
        (OperationalError, LockNotAvailable),
        (OperationalError, DeadlockDetected),
        (OperationalError, None),
        (InterfaceError, None),
        (InternalError, IdleInTransactionSessionTimeout),
        (InternalError, ReadOnlySqlTransaction),
    ],
)
def test_a_page_says_what_the_api_says(raised: type[Exception], cause: type[Exception] | None) -> None:
    client = signed_in(make_user("ana", team="search"))

    def refuse(*_: Any) -> None:
        raise raised("ended") from (cause("ended") if cause else None)

    with connection.execute_wrapper(refuse):
        page, told = client.get(reverse("fleet")), client.get("/api/v1/teams")
    problem = told.json()
    assert (page.status_code, page["Retry-After"]) == (told.status_code, told["Retry-After"]) == (503, "2")
    assert problem["code"] == ("locked" if cause in (LockNotAvailable, DeadlockDetected) else "database_unavailable")
    text = page.content.decode()
    assert problem["detail"] in text and f'href="{problem["type"]}"' in text
    assert client.get(reverse("fleet")).status_code == 200


def test_other_trouble_inside_the_database_is_ours() -> None:
    client = signed_in(make_user("ana", team="search"))
    client.raise_request_exception = False

    def refuse(*_: Any) -> None:
        raise InternalError("something else")

    with connection.execute_wrapper(refuse):
        assert client.get(reverse("fleet")).status_code == 500
