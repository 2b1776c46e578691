"""The one job that collects and sends for every webhook."""

from __future__ import annotations

from ledger.hooks.job_handlers import Again, Beat, handler
from ledger.models import Job
from notifications.actions.alerts import ALERTS_JOB
from notifications.actions.deliveries import JOB
from notifications.core.formats import ALERT_EVERY_S
from notifications.dispatcher.alerts import resend_alerts
from notifications.dispatcher.rounds import run_round

#: Seconds until the job's one row is due again, unless the scheduler makes it due sooner because there is something to send.
LONGEST_PAUSE_S = 3600.0


# Its failure appends no event: the event would be delivered by the very job that fails, again and again.
@handler(JOB["kind"], records_failure=False)
def dispatch(job: Job, beat: Beat) -> None:
    """Sends the due deliveries, then waits: the job keeps its one row over all rounds."""
    run_round(beat)
    raise Again(LONGEST_PAUSE_S, "waits for events")


@handler(ALERTS_JOB["kind"], records_failure=False)
def resend(job: Job, beat: Beat) -> None:
    """Tells each Alertmanager of the open alarms again, until there are none."""
    if resend_alerts():
        raise Again(ALERT_EVERY_S, "alarms are open")
