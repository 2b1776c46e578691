"""A webhook, what happens and what is sent, for tests that send to a real receiver. Import its fixtures with it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import notifications.tasks  # noqa: F401 - registers the handler, as Celery does
from accounts.core.access import Actor
from ledger.actions import append_event
from ledger.models import Event
from notifications import actions
from notifications.core.delivery import DeliveryState
from notifications.dispatcher import rounds
from notifications.models import Delivery, Webhook
from tests.support.servers.receiver import Receiver
from tests.support.worlds.factories import make_admin

ENGINE = Actor.system("engine")
S = DeliveryState


@pytest.fixture(autouse=True)
def _private(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "LONGEST_ROUND_S", 600.0)  # a round ends when nothing is due, however slow the machine
    settings.WEBHOOKS_ALLOW_PRIVATE = True
    settings.WEBHOOK_TIMEOUT_S = 20.0  # longer than any stutter of a busy machine


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def admin() -> Actor:
    return make_admin("root")


def subscribe(target: str, *, team: str | None = None, verbs: list[str] | None = None, **over: Any) -> Webhook:
    return actions.create_webhook(actor=ENGINE, team=team, target=target, verbs=verbs or ["rollout.*"], **over)[0]


def happen(verb: str = "rollout.held", *, model: str = "", **over: Any) -> Event:
    facts = {"model": model} if model else {}
    return append_event(
        **{"verb": verb, "subject_type": "rollout", "subject_id": 17, "actor": ENGINE, "facts": facts, **over}
    )


def send_all() -> int:
    return rounds.run_round(lambda: True)


def move_clock(**by: float) -> None:
    """Everything that waits has waited this much longer."""
    for delivery in Delivery.objects.all():
        Delivery.objects.filter(pk=delivery.pk).update(due_at=delivery.due_at - timedelta(**by))


def waits_s() -> float:
    """From the end of the last attempt until the only delivery is due again."""
    ended_at = only().tries.latest("number").ended_at
    assert ended_at is not None
    return (only().due_at - ended_at).total_seconds()


def only() -> Delivery:
    return Delivery.objects.select_related("webhook").get(event__isnull=False)
