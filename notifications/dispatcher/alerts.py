"""Sends the open alarms to every Alertmanager. The next round repeats a lost message, so no state is kept."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from django.conf import settings
from django.utils import timezone

from ledger.models import Event
from ledger.queries.chain_verification import link_of
from notifications.actions.alerts import alertmanagers, closings_for, openings_for
from notifications.core.delivery import ReceiverKind
from notifications.core.formats import alerts_body
from notifications.core.note import note_of
from notifications.dispatcher.outbound_message import OutboundMessage, installation, target_of
from notifications.dispatcher.rounds import SENDERS, send
from notifications.models import Webhook

log = logging.getLogger(__name__)


def resend_alerts() -> int:
    """Number of Alertmanagers that received open alarms."""
    open_ones = [(row, openings_for(row)) for row in alertmanagers()]
    told = _tell(open_ones)
    # While the messages were on their way an alarm may have closed, and its end may have come first.
    _tell([(row, closings_for(openings)) for row, openings in open_ones])
    return told


def _tell(found: list[tuple[Webhook, list[Event]]]) -> int:
    """Sends each Alertmanager its events, if any. Returns the number of messages."""
    messages, now = [], timezone.now()
    for row, events in found:
        if not events:
            continue
        notes = [note_of(link_of(event), public_url=settings.PUBLIC_URL) for event in events]
        body = alerts_body(notes, now=now, source=installation())
        target = target_of(row, row.target)
        messages.append(
            OutboundMessage(
                uuid4(), 1, ReceiverKind.WEBHOOK, row.format, target, row.may_be_private, events[0].verb, body
            )
        )
    with ThreadPoolExecutor(SENDERS, thread_name_prefix="alerts") as pool:
        for message, outcome in zip(messages, pool.map(send, messages), strict=True):
            if not outcome.is_ok:
                log.warning("alerts did not reach %s: %s", message.target, outcome.error)
    return len(messages)
