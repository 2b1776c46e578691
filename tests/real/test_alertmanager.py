"""Alarms at a real Alertmanager of Debian: open, told again, muted, closed; and the example of inhibition."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml
from django.db import connections
from django.utils import timezone

from accounts.core.access import Actor
from ledger.queries import clock
from notifications import actions
from notifications.core.delivery import Outcome
from notifications.dispatcher import alerts
from notifications.dispatcher.alerts import resend_alerts
from notifications.dispatcher.outbound_message import OutboundMessage
from rollouts.actions.alarms import end_alarm, mute
from rollouts.models import Alarm
from tests.support.rigs.alertmanager_rig import AlertmanagerProcess
from tests.support.rigs.gateway_rig import wait_until
from tests.support.servers.receiver import Receiver
from tests.support.worlds.alarm_setup import burning
from tests.support.worlds.rollout_setup import with_stable
from tests.support.worlds.webhook_setup import _private, receiver, send_all  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.real("alertmanager")]
ENGINE = Actor.system("tests")
INHIBITION = Path(__file__).resolve().parents[2] / "deploy" / "alertmanager" / "inhibition.yaml"


@pytest.fixture
def cluster(receiver: Receiver, tmp_path: Path) -> Iterator[list[AlertmanagerProcess]]:
    """Two Alertmanagers with the rules of inhibition, and a webhook for each; both tell `receiver`."""
    found = []
    hook = {"name": "hook", "webhook_configs": [{"url": receiver.url, "send_resolved": True}]}
    route = {
        "receiver": "hook", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h",
    }  # fmt: skip
    rules = yaml.safe_load(INHIBITION.read_text())
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        found.append(AlertmanagerProcess(tmp_path / name, {"route": route, "receivers": [hook], **rules}))
    try:
        for one in found:
            one.start()
            given = {"team": None, "format": "alertmanager", "target": one.url, "verbs": ["alarm.*"]}
            actions.create_webhook(actor=ENGINE, **given)
        yield found
    finally:
        for one in found:
            one.stop()


def left_s(alert: dict[str, str]) -> float:
    return (datetime.fromisoformat(alert["endsAt"]) - timezone.now()).total_seconds()


def close(alarm: Alarm) -> None:
    alarm.refresh_from_db()
    end_alarm(alarm, at=clock.now(), reason="errors of r1 is within the objective again.")


def test_an_alarm_is_an_alert_until_it_closes(
    cluster: list[AlertmanagerProcess], receiver: Receiver, settings: pytest.FixtureRequest
) -> None:
    settings.PUBLIC_URL = "https://sluicegate.example.com"  # type: ignore[attr-defined]
    rollout, release = with_stable()
    environment = rollout.environment
    page, ticket = (burning(release.model, tier=tier) for tier in ("page", "ticket"))
    send_all()
    for one in cluster:
        alerts = {alert["labels"]["severity"]: alert for alert in one.alerts()}
        assert set(alerts) == {"page", "ticket"} and 200 < left_s(alerts["page"]) <= 240
        labels = {"alertname": "ObjectiveBurning", "environment": environment.slug, "model": release.model.slug}
        assert labels.items() <= alerts["page"]["labels"].items()
        assert alerts["page"]["labels"]["instance"] == "sluicegate.example.com"
        assert alerts["page"]["generatorURL"] == f"https://sluicegate.example.com/alarms/{page.pk}/"
        assert "48 of 1200" in alerts["page"]["annotations"]["description"]
        assert alerts["page"]["status"]["state"] == "active"
        wait_until(
            lambda one=one: [a for a in one.alerts() if a["status"]["inhibitedBy"]], "the ticket to be inhibited"
        )
    first = cluster[0].alerts()[0]["endsAt"]
    assert resend_alerts() == 2
    wait_until(lambda: cluster[0].alerts()[0]["endsAt"] > first, "its end to move on")

    mute(actor=ENGINE, alarm=page, expected_version=1, reason="known", until=timezone.now() + timedelta(hours=1))
    assert resend_alerts() == 2  # the ticket alone
    close(ticket)
    assert resend_alerts() == 0
    close(page)
    send_all()
    wait_until(lambda: not [alert for one in cluster for alert in one.alerts()], "both to be resolved")
    said = [got.said for got in receiver.got]
    assert {one["version"] for one in said} == {"4"}
    wait_until(lambda: any(got.said["status"] == "resolved" for got in receiver.got), "Alertmanager to tell of the end")


def test_an_alarm_that_closes_while_it_is_sent_again_ends(
    cluster: list[AlertmanagerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, release = with_stable()
    alarm = burning(release.model)
    send_all()
    sent, closed = alerts.send, list[Alarm]()

    def late(message: OutboundMessage) -> Outcome:
        """Brings the opening after the alarm's end has come."""
        if not closed:
            closed.append(alarm)
            close(alarm)
            send_all()
            connections.close_all()  # of this thread
        return sent(message)

    monkeypatch.setattr(alerts, "SENDERS", 1)
    monkeypatch.setattr(alerts, "send", late)
    assert resend_alerts() == 2
    wait_until(lambda: not [alert for one in cluster for alert in one.alerts()], "the alert to be resolved")
