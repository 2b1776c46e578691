"""Open alarms at Alertmanagers, which take an alert for ended unless they hear of it again."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.actions.jobs import enqueue
from ledger.models import Event
from ledger.queries import events
from notifications.core.formats import WebhookFormat
from notifications.models import Webhook
from notifications.queries.webhooks import events_for
from rollouts.queries.alarms import loud_alarms

ALERTS_JOB = {"kind": "notifications.alerts", "key": "all"}


def wake_alerts() -> None:
    """Begins to send alerts while an alarm is open and an Alertmanager is on."""
    if alertmanagers() and loud_alarms().exists():
        enqueue(kind=ALERTS_JOB["kind"], key=ALERTS_JOB["key"], args={})


def alertmanagers() -> list[Webhook]:
    return list(Webhook.objects.filter(format=WebhookFormat.ALERTMANAGER, is_active=True).select_related("team"))


def openings_for(webhook: Webhook) -> list[Event]:
    """The newest opening of each open alarm that the webhook's team may read, and that is not muted."""
    pks = [str(pk) for pk in loud_alarms().values_list("pk", flat=True)]
    mine = events_for(webhook) if webhook.team else events()
    found = mine.filter(subject_type="alarm", subject_id__in=pks, verb="alarm.opened").order_by("seq")
    return list({event.subject_id: event for event in found}.values())


def closings_for(openings: Sequence[Event]) -> list[Event]:
    """The closing of each of these alarms that has closed since."""
    first = {event.subject_id: event.seq for event in openings}
    found = events().filter(subject_type="alarm", subject_id__in=first, verb="alarm.closed").order_by("seq")
    return [event for event in found if event.seq > first[event.subject_id]]
