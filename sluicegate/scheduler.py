"""The scheduler: every few seconds it hands to Celery the jobs that are due, wakes the dispatcher of
notifications, and opens incidents for alarms.

Any number may run: one leads, by a lease. What it does is safe to do twice (a job runs by its own lease), so no write carries
the token; the lease only spares the broker copies. It is a process of its own, so that neither a worker that hangs nor
an engine that is away holds up what is due.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

import structlog
from django.db import close_old_connections

from insights.actions.incidents import open_for_alarms
from ledger.actions import dispatch_due
from ledger.actions.leadership import Leadership
from ledger.adapters.process_names import process_name
from notifications.actions import wake_alerts, wake_dispatcher
from rollouts.actions.alarms import end_mutes

log = structlog.get_logger(__name__)
LEASE = "scheduler"
EVERY_S = 2.0
#: Another one takes over so long after the leader died or froze.
LEASE_S = 10.0
DUTIES: tuple[Callable[[], object], ...] = (wake_dispatcher, wake_alerts, dispatch_due, open_for_alarms, end_mutes)


class Scheduler:
    """A scheduler process. `every_s`: seconds between two looks; `lease_s`: time until another scheduler takes over."""

    def __init__(self, *, owner: str = "", every_s: float = EVERY_S, lease_s: float = LEASE_S) -> None:
        self.every_s = every_s
        self.lead = Leadership(LEASE, owner or process_name(), lease_s)
        self._is_stopping = threading.Event()

    def run(self) -> None:
        """Looks until `stop()`, then gives leadership back at once."""
        while not self._is_stopping.is_set():
            self.turn()
            self._is_stopping.wait(self.every_s)
        _try(self.lead.give_back)

    def stop(self) -> None:
        """Ends `run` after the look that it is in. May be called by a signal handler."""
        self._is_stopping.set()

    def turn(self) -> bool:
        """One look; whether this scheduler leads. Raises nothing."""
        if not _try(self.lead.take):
            return False
        look()
        return True


def look() -> None:
    """Every duty once. One that fails keeps none of the others from its turn, and is tried again at the next look."""
    for duty in DUTIES:
        _try(duty)


def _try(step: Callable[[], object]) -> object:
    try:
        return step()
    except Exception:  # jobs are rows, and rows wait
        log.warning("scheduler_failed", step=step.__name__, traceback=traceback.format_exc())
        close_old_connections()
        return None
