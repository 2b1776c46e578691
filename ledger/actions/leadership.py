"""Leadership: by a named lease in the database, with a fencing token that goes into every write."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from django.db import connection, transaction

from ledger.actions.leases import acquire_after, holder, lock_lease, release, renew

log = structlog.get_logger(__name__)
_BOUNDS = """
SELECT set_config('idle_in_transaction_session_timeout', %s, true), set_config('statement_timeout', %s, true),
set_config('lock_timeout', %s, true)
"""


class LeadershipLost(Exception):
    """Another process leads; whatever is left of the turn is its business."""


class Leadership:
    """One process's part in it. `token` is None while another one leads."""

    def __init__(self, name: str, owner: str, lease_s: float) -> None:
        self.name, self.owner, self.lease_s = name, owner, lease_s
        self.token: int | None = None
        self._renewed_at = 0.0

    @property
    def fence(self) -> int:
        """The token that writes carry. Raises LeadershipLost without one."""
        if self.token is None:
            raise LeadershipLost
        return self.token

    def take(self) -> bool:
        """Whether this process leads from here on: still, or anew with a higher token."""
        if self.token is not None and self._renew():
            return True
        was, self.token = self.token, acquire_after(self.name, self.owner, self.lease_s)
        self._renewed_at = time.monotonic()
        if self.token is not None:
            log.info(f"{self.name}_leads", owner=self.owner, token=self.token)
        elif was is not None:
            log.warning(f"{self.name}_lost_lead", owner=self.owner, token=was)
        return self.token is not None

    def keep(self) -> None:
        """Within a long turn: extends the lease well before it runs out. Raises LeadershipLost."""
        if self.token is None:
            raise LeadershipLost
        if time.monotonic() - self._renewed_at > self.lease_s / 3 and not self._renew():
            log.warning(f"{self.name}_lost_lead", owner=self.owner, token=self.token)
            self.token = None
            raise LeadershipLost

    def holds(self) -> bool:
        """Whether this process leads, by the database. For its other threads."""
        return holder(self.name) == self.owner

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A transaction in which no other process can take the lease. Raises LeadershipLost.

        For writes without a token. It also delays this process's own renewal, so the database ends it if a statement
        takes a third of the lease, a lock a sixth, or the process freezes for a third. Raises OperationalError then.
        """
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(_BOUNDS, [f"{self.lease_s / part * 1000:.0f}" for part in (3, 3, 6)])
            if not lock_lease(self.name, self.owner):
                raise LeadershipLost
            yield

    def lose(self) -> None:
        """A write was refused: somebody else has led since."""
        self.token = None

    def give_back(self) -> None:
        """So that the next one need not wait for the lease to run out."""
        if self.token is not None:
            release(self.name, self.owner, self.token)
            log.info(f"{self.name}_stopped", owner=self.owner)
            self.token = None

    def _renew(self) -> bool:
        self._renewed_at = time.monotonic()
        return self.token is not None and renew(self.name, self.owner, self.token, self.lease_s)
