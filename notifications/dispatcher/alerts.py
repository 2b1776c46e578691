"""Sends the open alarms to every Alertmanager. The next round repeats a lost message, so no state is kept."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from django.conf import settings
from django.utils import timezone

from ledger.queries.chain_verification import link_of
from notifications.actions.alerts import alertmanagers, openings_for
from notifications.core.delivery import ReceiverKind
from notifications.core.formats import alerts_body
from notifications.core.note import note_of
from notifications.dispatcher.outbound_message import OutboundMessage, installation, target_of
from notifications.dispatcher.rounds import SENDERS, send

log = logging.getLogger(__name__)


def resend_alerts() -> int:
    """Number of Alertmanagers that received open alarms."""
    messages, now = [], timezone.now()
    for row in alertmanagers():
        notes = [note_of(link_of(event), public_url=settings.PUBLIC_URL) for event in openings_for(row)]
        if notes:
            body = alerts_body(notes, now=now, source=installation())
            kind, target = ReceiverKind.WEBHOOK, target_of(row, row.target)
            messages.append(
                OutboundMessage(uuid4(), 1, kind, row.format, target, row.may_be_private, "alarm.opened", body)
            )
    with ThreadPoolExecutor(SENDERS, thread_name_prefix="alerts") as pool:
        for message, outcome in zip(messages, pool.map(send, messages), strict=True):
            if not outcome.is_ok:
                log.warning("alerts did not reach %s: %s", message.target, outcome.error)
    return len(messages)
