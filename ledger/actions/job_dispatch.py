"""Hands to Celery what is due and what it may have lost. The scheduler calls this every few seconds."""

from __future__ import annotations

import logging
from datetime import timedelta

from django.db.models import F, Q
from django.db.models.functions import Now

from ledger.actions.jobs import UNFINISHED, send
from ledger.core.lifecycle import JobState
from ledger.models import Job

log = logging.getLogger(__name__)
#: A job whose id was sent this long ago and which nobody took is sent again. Celery may have lost it.
RESEND_AFTER_S = 30.0


def dispatch_due(limit: int = 200) -> int:
    """How many ids were sent again: waiting jobs that are due and running ones whose lease ran out.

    Never twice within RESEND_AFTER_S, so that a long queue does not fill with copies. A copy that does arrive is harmless:
    its claim finds nothing. Stops quietly while the transport is away.
    """
    unsent = Q(sent_at__isnull=True) | Q(sent_at__lt=Now() - timedelta(seconds=RESEND_AFTER_S))
    waiting = Q(state=JobState.QUEUED, due_at__lte=Now()) & unsent
    abandoned = Q(state=JobState.RUNNING, lease_until__lt=Now()) & (unsent | Q(sent_at__lt=F("lease_until")))
    sent = 0
    for job in Job.objects.filter(waiting | abandoned).order_by("due_at")[:limit]:
        try:
            send(job)
        except Exception as error:  # the transport's own error families are many (kombu, redis, OSError)
            log.warning("Jobs cannot be handed to Celery now: %s. They stay queued and are tried again.", error)
            Job.objects.filter(pk=job.pk, state__in=UNFINISHED).update(sent_at=None)
            break
        sent += 1
    return sent
