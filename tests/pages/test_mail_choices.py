"""The mails on one's account page, and the webhook that stands for all mails to people."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.core.access import Role
from ledger.models import Event
from notifications.actions.deliveries import people_row
from notifications.models import Delivery, MailChoice
from tests.pages.clients import signed_in
from tests.support.worlds.factories import make_user

pytestmark = pytest.mark.django_db


def said(answer: Any) -> str:
    text: str = answer.content.decode()
    return text


def test_a_person_writes_an_address_and_chooses(settings: Any) -> None:
    settings.EMAIL_HOST = "127.0.0.1"
    user = make_user("ana", team="search", role=Role.VIEWER)
    client = signed_in(user)
    page = said(client.get(reverse("account")))
    assert "You have no address" in page and page.count('type="checkbox" name="approvals" checked') == 1
    page = said(client.post(reverse("account_mails"), {"address": "ana@example.com", "rollbacks": "on"}, follow=True))
    assert (
        "Your choice of mails is kept" in page
        and 'value="ana@example.com"' in page
        and "You have no address" not in page
    )
    assert 'name="approvals">' in page and 'name="rollbacks" checked>' in page
    choice = MailChoice.objects.get(user=user)
    assert (choice.wants_approvals, choice.wants_rollbacks) == (False, True)


def test_a_bad_address_is_a_sentence_and_stays_in_its_field(settings: Any) -> None:
    settings.EMAIL_HOST = "127.0.0.1"
    answer = signed_in(make_user()).post(reverse("account_mails"), {"address": "ana at home", "approvals": "on"})
    assert (
        answer.status_code == 422 and "is no e-mail address" in said(answer) and 'value="ana at home"' in said(answer)
    )
    assert not MailChoice.objects.exists() and not Event.objects.filter(verb="user.mails_chosen").exists()


def test_nobody_chooses_without_signing_in() -> None:
    answer: Any = Client().post(reverse("account_mails"), {"address": "a@example.com"})
    assert answer.status_code == 302 and answer.url.startswith("/sign-in/") and not MailChoice.objects.exists()


def test_without_a_mail_server_the_page_says_so() -> None:
    assert "This installation sends no mails" in said(signed_in(make_user()).get(reverse("account")))


def test_administrators_see_the_mails_as_a_webhook_and_others_do_not() -> None:
    row, ana = people_row(), make_user("ana", team="search", role=Role.RELEASE_MANAGER)
    Delivery.objects.create(webhook=row, person=ana, need="approval:1:start", due_at=row.created_at)
    address = reverse("webhook", args=[row.pk])
    page = said(signed_in(make_user(is_admin=True)).get(address))
    assert "to ana" in page and "Turn off" in page and "Delete webhook" not in page and "New secret" not in page
    assert signed_in(ana).get(address).status_code == 404
