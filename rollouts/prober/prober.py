"""The prober: compares live rollouts' releases on mirrored requests and on golden items, and writes its counts.

`turn`, once a second, is the only part that uses the database (but for reading a golden set once): it keeps the lease and
writes the tallies in one transaction, so that a prober that slept through its lease overwrites nothing, and reads whom to
probe. Two may run: one leads, and what reaches the other is let go.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from typing import Any

import structlog
from django import db
from django.conf import settings
from django.db import transaction

from ledger.actions.leases import acquire_after, release, renew
from ledger.adapters.process_names import process_name
from rollouts.prober.golden import GoldenProbes, StableProbes
from rollouts.prober.servers import Connect, Servers, connect
from rollouts.prober.shadow_comparison import Shadowing
from rollouts.prober.tallies import Tallies
from rollouts.prober.targets import Target, Targets, promotions

log = structlog.get_logger(__name__)
LEASE = "prober"
TURN_S = 1.0
#: Releases that are probed outside rollouts are read this often.
READ_STABLE_S = 5.0


class Prober:
    """One prober process."""

    def __init__(
        self, connect: Connect = connect, *, owner: str = "", per_s: float | None = None, lease_s: float | None = None
    ) -> None:
        self.owner = owner or process_name()
        self.token: int | None = None
        self.book = Tallies()
        self._lease_s = settings.ENGINE_LEASE_S if lease_s is None else lease_s
        self._servers, self._targets, self._stables = Servers(connect), Targets(), Targets(promotions)
        self._stable: list[Target] = []
        self._read_at = -READ_STABLE_S
        rate = settings.PROBER_PER_S if per_s is None else per_s
        self.shadowing = Shadowing(self.book, self._servers, per_s=rate)
        self.golden = GoldenProbes(self.book, self._servers)
        self.stable = StableProbes(self.book, self._servers)
        self._stop = threading.Event()
        self._clock = threading.Thread(target=self._run, name="clock", daemon=True)

    def start(self) -> None:
        self.shadowing.start()
        self._clock.start()

    def stop(self) -> None:
        """Ends all threads, writes the counts, and gives leadership back at once."""
        self._stop.set()
        if self._clock.is_alive():
            self._clock.join(5.0)
        self.shadowing.stop()
        self.golden.stop()
        self.stable.stop()
        self._servers.close()

    def status(self) -> dict[str, Any]:
        """Whether it leads, and what became of the requests it was sent, over the life of the process."""
        return {
            "owner": self.owner,
            "leads": self.token is not None,
            "epoch": self.book.epoch,
            "seen": dict(self.book.seen),
        }

    def turn(self) -> bool:
        """One second's work; whether this prober leads. Raises django.db.Error."""
        if not self._keep_lease():
            self.shadowing.watch([])
            return False
        targets = self._targets.read()
        if time.monotonic() - self._read_at >= READ_STABLE_S:
            self._stable, self._read_at = self._stables.read(), time.monotonic()
        everyone = [*targets, *self._stable]
        self.book.watch(
            {target.rollout_id: target.profile.examples for target in everyone},
            {target.rollout_id for target in self._stable},
        )
        self.shadowing.watch(targets)
        self.golden.turn(targets)
        self.stable.turn(self._stable)
        self._servers.keep(one for target in everyone for one in (*target.candidate, *target.stable))
        return True

    def _keep_lease(self) -> bool:
        """Whether it leads; if so, writes its counts in the same transaction."""
        if self.token is not None:
            with transaction.atomic():
                if renew(LEASE, self.owner, self.token, self._lease_s):
                    self.book.write()
                    return True
            log.warning("prober_lost_lead", owner=self.owner, token=self.token)
        self.token = acquire_after(LEASE, self.owner, self._lease_s)
        # An epoch is a term, not a process: who leads again begins to count again.
        self.book.begin(f"{self.token}:{os.urandom(3).hex()}" if self.token is not None else "")
        if self.token is not None:
            log.info("prober_leads", owner=self.owner, token=self.token)
        return self.token is not None

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self.turn()
            except db.Error as error:
                log.warning("database_away", error=str(error).strip())
                db.close_old_connections()
            except Exception:  # one broken row must not end the loop; it is retried in a second
                log.error("prober_turn_failed", traceback=traceback.format_exc())
                db.close_old_connections()
            self._stop.wait(max(0.01, began + TURN_S - time.monotonic()))
        self._leave()
        db.connections.close_all()

    def _leave(self) -> None:
        if self.token is not None:
            try:
                if self._keep_lease() and self.token is not None:
                    release(LEASE, self.owner, self.token)
            except db.Error as error:
                log.warning("lease_not_given_back", error=str(error).strip())
