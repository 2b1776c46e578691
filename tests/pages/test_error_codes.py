"""Every stable code has a page, and a problem leads to it."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.support.house.error_codes import OF_FRAMEWORKS, raised_codes
from web.error_codes import error_codes

pytestmark = pytest.mark.slow  # every file is parsed


def test_every_code_that_is_raised_is_in_docs_errors_md() -> None:
    """One that is missing here needs a row there: what it means, and what to do next."""
    assert len(raised_codes()) > 150
    assert sorted(set(raised_codes()) - set(error_codes())) == []


def test_no_code_is_told_that_nothing_raises() -> None:
    assert sorted(set(error_codes()) - set(raised_codes()) - OF_FRAMEWORKS) == []


def test_the_reader_finds_codes_in_every_form() -> None:
    """Directly, by a subclass of another room, by `refuse`, as a form's own, chosen between two, in a keyword."""
    codes = raised_codes()
    assert codes["stale"] == {412} and codes["too_slow"] == {408} and "unverified_files" in codes
    assert {"invalid_spec", "report_missing", "report_not_passed", "login_failed", "too_many_streams"} <= set(codes)


@pytest.mark.django_db
def test_a_problem_leads_to_its_page_without_signing_in(client: Client) -> None:
    problem = client.get("/api/v1/models").json()
    page = client.get(problem["type"])
    assert page.status_code == 200 and "sluicegate login</code> gets one" in page.content.decode()
    assert problem["type"] == "/errors/not_authenticated/"
    assert client.get("/errors/no_such_code/").status_code == 404


@pytest.mark.django_db
def test_the_list_is_filtered_by_any_word(client: Client) -> None:
    page = client.get("/errors/?text=blob+STORE").content.decode()
    assert "store_full" in page and "wrong_state" not in page
    assert "No code has these words" in client.get("/errors/?text=%00nothing<b>").content.decode()
    every = client.get("/errors/").content.decode()
    assert [code for code in error_codes() if f"/errors/{code}/" not in every] == []
