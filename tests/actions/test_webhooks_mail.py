"""E-mail to whoever subscribed, through a mail server over a real socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from accounts.core.access import Actor, Role
from ledger.actions import append_event
from ledger.core.errors import Invalid
from notifications import actions
from notifications.core.delivery import DeliveryState
from notifications.dispatcher import rounds
from notifications.models import Delivery, Webhook
from tests.support.servers.mail_server import MailServer
from tests.support.worlds.factories import make_actor, make_model, make_team

pytestmark = pytest.mark.django_db
ENGINE = Actor.system("engine")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def mail(settings: Any) -> Iterator[MailServer]:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"  # the test run's own keeps mails to itself
    with MailServer() as running:
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", running.port
        settings.EMAIL_TIMEOUT = 1
        settings.DEFAULT_FROM_EMAIL = "Sluicegate <sluicegate@example.com>"
        yield running


@pytest.fixture
def row(mail: MailServer) -> Webhook:
    make_model("sentiment", team=make_team("search"))
    made, secret = actions.create_webhook(
        actor=make_actor(Role.MODEL_TEAM),
        team="search",
        kind="email",
        target="on-call@example.com",
        verbs=["rollout.*"],
    )
    assert secret == ""
    return made


def happen(reason: str = "slow: 4 % of 900 attempts") -> None:
    facts = {"model": "sentiment", "candidate": "r2", "environment": "production"}
    append_event(
        verb="rollout.rolled_back", subject_type="rollout", subject_id=17, actor=ENGINE, from_state="rolling_back",
        to_state="rolled_back", reason=reason, facts=facts,
    )  # fmt: skip


def test_an_event_is_one_mail(mail: MailServer, row: Webhook) -> None:
    happen("slow: 4 %\r\nBcc: everybody@example.com")
    assert rounds.run_round(lambda: True) == 1
    (got,) = mail.got
    assert mail.recipients == ["on-call@example.com"] and got["To"] == "on-call@example.com"
    assert got["From"] == "Sluicegate <sluicegate@example.com>" and got["Bcc"] is None
    assert got["Subject"] == "[Sluicegate] rollout.rolled_back: sentiment r2 production"
    delivery = Delivery.objects.get()
    assert delivery.state == DeliveryState.DELIVERED
    assert got["Message-ID"] == f"<{delivery.pk}@example.com>"
    text = got.get_content()
    assert "slow: 4 %" in text and f"Webhook {row.pk}" in text


def test_the_test_button_sends_a_mail(mail: MailServer, row: Webhook) -> None:
    assert rounds.send_test(actor=ENGINE, webhook=row).state == DeliveryState.DELIVERED
    assert mail.got[0]["Subject"] == "[Sluicegate] webhook.test" and "system:engine" in mail.got[0].get_content()


def test_what_the_mail_server_refuses_is_tried_again(mail: MailServer, row: Webhook) -> None:
    happen()
    mail.refuses = "451 greylisted"
    rounds.run_round(lambda: True)
    tried = Delivery.objects.get().tries.get()
    assert "greylisted" in tried.error and Delivery.objects.get().state == DeliveryState.FAILED
    mail.refuses = ""
    for delivery in Delivery.objects.all():
        Delivery.objects.update(due_at=delivery.due_at - timedelta(minutes=1))
    rounds.run_round(lambda: True)
    assert Delivery.objects.get().state == DeliveryState.DELIVERED and len(mail.got) == 1


def test_a_mail_server_that_is_away_or_silent_is_an_attempt(mail: MailServer, row: Webhook, settings: Any) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        settings.EMAIL_PORT, settings.EMAIL_TIMEOUT = silent.getsockname()[1], 0.3
        assert "timed out" in rounds.send_test(actor=ENGINE, webhook=row).tries.get().error
    assert "did not take it" in rounds.send_test(actor=ENGINE, webhook=row).tries.get().error
    settings.EMAIL_HOST = ""
    assert "SLUICEGATE_EMAIL_URL" in rounds.send_test(actor=ENGINE, webhook=row).tries.get().error


@pytest.mark.parametrize("address", ["nobody", "a@b@c", "a@example.com\r\nBcc: b@example.com", ""])
def test_what_is_no_address(mail: MailServer, address: str) -> None:
    with pytest.raises(Invalid, match="Write one, such as"):
        actions.create_webhook(actor=ENGINE, team=None, kind="email", target=address, verbs=["*"])


def test_a_mail_has_no_secret(row: Webhook) -> None:
    with pytest.raises(Invalid, match="only webhooks are signed"):
        actions.rotate_secret(actor=ENGINE, webhook=row, expected_version=1)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("", "||587||False|False"),
        ("smtp://mail.example.com", "mail.example.com||587||False|False"),
        ("smtp://me%40x:p%2Fw@mail.example.com:2525", "mail.example.com|me@x|2525|p/w|False|True"),
        ("smtp://mail.example.com:25?starttls=1", "mail.example.com||25||False|True"),
        ("smtps://me:pw@mail.example.com", "mail.example.com|me|465|pw|True|False"),
    ],
)
def test_the_setting(url: str, shown: str) -> None:
    assert _settings(url) == (0, shown)


@pytest.mark.parametrize("url", ["mail.example.com", "https://mail.example.com", "smtp://", "smtp://host:abc"])
def test_a_setting_that_makes_no_sense_stops_the_start(url: str) -> None:
    code, said = _settings(url)
    assert code != 0 and "SLUICEGATE_EMAIL_URL must be smtp://" in said


def _settings(url: str) -> tuple[int, str]:
    names = ["EMAIL_HOST", "EMAIL_HOST_USER", "EMAIL_PORT", "EMAIL_HOST_PASSWORD", "EMAIL_USE_SSL", "EMAIL_USE_TLS"]
    program = f"from sluicegate import settings as s; print('|'.join(str(getattr(s, n)) for n in {names}))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "SLUICEGATE_EMAIL_URL": url},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.strip() or done.stderr
