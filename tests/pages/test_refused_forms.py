"""Forms that no view gets to read: too large, malformed, of another session. A person is told so by a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from playwright.sync_api import Page, expect

from tests.pages.clients import signed_in
from tests.support.rigs.browser_rig import WITHIN_MS
from tests.support.worlds.factories import make_user

pytestmark = pytest.mark.django_db


def is_page(answer: Any, status: int, code: str) -> None:
    text = answer.content.decode()
    assert (answer.status_code, answer["content-type"]) == (status, "text/html; charset=utf-8"), text
    assert "Nothing was changed" in text and f'href="/errors/{code}/"' in text


def test_a_form_of_another_session() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user("ana", team="search"))
    is_page(client.post(reverse("password"), {"password": "x"}), 403, "permission_denied")


def test_a_body_that_is_no_form(settings: Any) -> None:
    client = signed_in(make_user("ana", team="search"))
    is_page(client.post(reverse("password"), b"x", content_type="multipart/form-data"), 400, "bad_request")
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 2
    is_page(client.post(reverse("password"), {"a": 1, "b": 2, "c": 3}), 400, "bad_request")


@pytest.mark.real("chromium")
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("length", [70_000, 3_000_000])
def test_a_browser_shows_why_a_form_is_too_large(page_of: Callable[..., Page], length: int) -> None:
    """Also where the answer comes while the browser still sends: what was sent is then no longer read."""
    expect.set_options(timeout=WITHIN_MS)
    page = page_of(None, expects=("413",))
    page.goto(reverse("sign_in"))
    page.locator("[name=username]").fill("ana")
    page.locator("[name=password]").fill("x" * length)
    page.get_by_role("button", name="Sign in").click()
    main = expect(page.locator("main"))
    main.to_contain_text("bytes are more than the 65536 that one request")
    page.get_by_role("link", name="too_large").click()
    main.to_contain_text("What to do next")
