"""The rollout loop: observe → decide → apply at most one effect → record, for every active rollout, every tick.

Two engines may run. One leads by a database lease; its fencing token goes into every write, so that one that slept
through its lease is refused. All state is in the database: any engine can go on from any line.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

import structlog
from django.conf import settings
from django.db import DatabaseError, OperationalError, close_old_connections, connection

from accounts.core.errors import Stale, StateChanged
from ledger.actions import dispatch_due
from ledger.leases import acquire, release, renew
from rollouts.actions.conduct import commit_tick, let_go
from rollouts.actions.recording import Tick, commit_holds, join_old_blocks
from rollouts.core.counting import Reading
from rollouts.core.decision import Action
from rollouts.core.history import MOST_BLOCKS
from rollouts.core.lifecycle import RolloutState
from rollouts.engine.book import Book, Known, View, gateways_of, look
from rollouts.engine.clock import DatabaseClock
from rollouts.engine.judging import judge
from rollouts.engine.pace import Pace
from rollouts.engine.taking_back import look_for_zero, take_back
from rollouts.external import ExternalReader
from rollouts.models import Rollout
from rollouts.observe import Page, Readers, Seen, seen_of
from rollouts.queries import cooled
from serving.models import Gateway
from serving.ports import TrafficCounters
from serving.routing import lift_fences

log = structlog.get_logger(__name__)
S = RolloutState
LEASE = "engine"
DISPATCH_EVERY_S = 2.0
#: Promoted rollouts whose old release may be let go are looked for this often.
SWEEP_EVERY_S = 5.0
#: After a rollback was written, its acknowledgement is looked for this often, for this long, within the tick.
ZERO_POLL_S, ZERO_POLL_FOR_S = 0.05, 1.0
#: A tick that was woken does not begin sooner than this after the one before it.
EARLY_S = 0.2
#: While a candidate does nothing but fail, the next look comes sooner. More than `breach.FAILING_OVER_S`.
LOOK_AGAIN_S = 0.5
#: A candidate without a server is gone when it still has none after this long; one that failed before, at once.
GONE_OVER_S = 0.5
#: So many holds are written by one statement: enough to be cheap, few enough to be short.
HOLDS_AT_ONCE = 200
#: Effects that are no rollback may take this share of a tick; what is left of them waits for the next one.
EFFECTS_SHARE = 0.4
#: A rollout has its old blocks joined when it has so many more than it may keep; only so many rollouts in a turn.
BLOCKS_OVER, JOINED_AT_ONCE = 32, 4


class LeadLost(Exception):
    """Another engine leads; whatever is left of the turn is its business."""


class Engine:
    """One engine process. `bad_attempts` counts ticks of single rollouts that broke; the others go on."""

    def __init__(
        self,
        counters: TrafficCounters,
        *,
        owner: str = "",
        tick_s: float | None = None,
        lease_s: float | None = None,
        external: ExternalReader | None = None,
        clock: DatabaseClock | None = None,
        pace_file: Path | None = None,
    ) -> None:
        self.counters = counters
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}"
        self.tick_s = settings.ENGINE_TICK_S if tick_s is None else tick_s
        self.lease_s = settings.ENGINE_LEASE_S if lease_s is None else lease_s
        self.token: int | None = None
        self.bad_attempts = 0
        self.clock = clock or DatabaseClock()
        self.external = external or ExternalReader(None)
        self.pace = Pace(self.owner, pace_file)
        self.book = Book()
        self._readers, self._early_readers = Readers(counters), Readers(counters)
        self._due = time.monotonic()
        self._is_late_s = self._renewed_at = self._swept_at = 0.0
        self._is_failing = False
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._is_stopping = threading.Event()

    # -- pace -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Ticks until `stop()`, then gives leadership back at once."""
        keeper = threading.Thread(target=self._keep_house, name="housekeeping", daemon=True)
        keeper.start()
        self._due = time.monotonic()
        while not self._is_stopping.is_set():
            began = time.monotonic()
            is_due = began >= self._due
            self._is_late_s = max(0.0, began - self._due)
            try:
                self.step() if is_due else self.glance()
            except OperationalError as error:
                log.warning("database_away", error=str(error))
                self._start_afresh()
            except Exception:  # a loop that guards traffic does not end over one bad tick
                self.bad_attempts += 1
                log.error("engine_tick_failed", traceback=traceback.format_exc())
                self._start_afresh()
            if is_due:
                # by the schedule, not by when the turn ended; what was slept through altogether is not made up for
                self._due = max(self._due + self.tick_s, time.monotonic() - self.tick_s)
            self._rest(began)
        self.external.stop()
        if self.token is not None:
            release(LEASE, self.owner, self.token)
            log.info("engine_stopped", owner=self.owner)

    def wake(self) -> None:
        """Lets the next look come at once: a server or a route changed. May be called by any thread or signal handler."""
        self._calls.put(None)

    def stop(self) -> None:
        """Ends `run` after the turn that it is in. May be called as `wake` may."""
        self._is_stopping.set()
        self.wake()

    def _rest(self, began: float) -> None:
        """Waits until the next turn is due or called for. Calls that came together are one."""
        until = min(self._due, began + LOOK_AGAIN_S) if self._is_failing else self._due
        with suppress(Empty):
            self._calls.get(timeout=max(0.001, until - time.monotonic()))
            early = min(began + EARLY_S, max(self._due, began))
            time.sleep(0 if self._is_stopping.is_set() else max(0.001, early - time.monotonic()))
        while not self._calls.empty():
            self._calls.get_nowait()

    def _keep_house(self) -> None:
        """What must not delay a tick, whoever leads: a broker that hangs, for one."""
        while not self._is_stopping.wait(DISPATCH_EVERY_S):
            try:
                dispatch_due()
            except Exception:  # it is tried again; jobs are rows, and rows wait
                log.warning("housekeeping_failed", traceback=traceback.format_exc())
                close_old_connections()
        connection.close()

    def _start_afresh(self) -> None:
        """Nothing in memory is trusted: nobody knows what of the last turn was committed."""
        self.book.forget()
        close_old_connections()

    # -- turns ------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One turn: whether this engine leads, having ticked every active rollout."""
        return self._turn(is_whole=True)

    def glance(self) -> bool:
        """A turn between two ticks, over those rollouts that something other than time may move on."""
        return self._turn(is_whole=False)

    def _turn(self, *, is_whole: bool) -> bool:
        began = time.monotonic()
        late_s, self._is_late_s = (self._is_late_s, 0.0) if is_whole else (0.0, self._is_late_s)
        if not self._leads():
            return False
        self.clock.sync()
        everyone = self.book.read()
        self._tell_of_broken()
        known = sorted((one for one in everyone if is_whole or one.is_restless), key=_suspects_first)
        lags: list[float] = []
        try:
            self._tick_all(known, self._readers if is_whole else self._early_readers, began, lags)
            if is_whole:
                self._tidy(everyone)
        except LeadLost:
            return False
        self._is_failing = any(_only_fails(one) for one in known)
        if is_whole:
            self.pace.turn(self.clock.now(), [late_s + lag for lag in lags], time.monotonic() - began)
        return self.token is not None

    def _tick_all(self, known: list[Known], readers: Readers, began: float, lags: list[float]) -> None:
        """Ticks these rollouts. Adds to `lags`, for each, the seconds between the turn's beginning and its own."""
        if not known:
            self.external.follow([], fence=self.token or 0)
            return
        gateways = gateways_of(known)
        models: dict[int, set[str]] = {where: set() for where in gateways}
        for one in known:
            models[one.rollout.environment_id].add(one.rollout.model.slug)
        readers.ask([gateway for here in gateways.values() for gateway in here], models)
        view = look(known, gateways, self.clock.now(), self.token or 0)
        holds: list[tuple[Known, Tick]] = []
        others: list[tuple[Known, Tick, Seen]] = []
        for batch, pages in _settled(known, gateways, readers):
            for one in batch:
                lags.append(time.monotonic() - began)
                self._judged(one, view, pages, holds, others)
                self._keep_lead()
        for start in range(0, len(holds), HOLDS_AT_ONCE):
            self._hold(holds[start : start + HOLDS_AT_ONCE], view)
            self._keep_lead()
        self._carry_out(others, view)
        self._await_zero(known, view)

    def _judged(
        self,
        known: Known,
        view: View,
        pages: dict[str, Page],
        holds: list[tuple[Known, Tick]],
        others: list[tuple[Known, Tick, Seen]],
    ) -> None:
        """Judges one rollout. A rollback is written at once; what is not so urgent is put off."""
        rollout = known.rollout
        with self._one(rollout):
            seen = seen_of(rollout, view.gateways[rollout.environment_id], pages, known.policy, view.at)
            external = self._external_of(known)
            tick = judge(known, view, seen, external, gone_over_s=GONE_OVER_S)
            if tick.decision.action is Action.ROLL_BACK:
                known.took(commit_tick(tick))
            elif tick.is_effect or tick.warning or rollout.state in {S.ROLLING_BACK, S.STUCK}:
                others.append((known, tick, seen))
            else:
                holds.append((known, tick))

    def _hold(self, pairs: list[tuple[Known, Tick]], view: View) -> None:
        """Writes ticks that change nothing but what is known: all at once or, should that fail, one by one."""
        try:
            written = commit_holds([tick for _, tick in pairs], fence=view.fence)
        except DatabaseError as error:
            if _is_away(error):
                raise
            log.warning("holds_written_one_by_one", error=str(error))
            for known, tick in pairs:
                with self._one(known.rollout):
                    known.took(commit_tick(tick))
            return
        for known, _ in pairs:
            if known.rollout.pk in written:
                known.took(written[known.rollout.pk])
            else:
                self.book.drop(known.rollout.pk)
                log.info("tick_dropped", rollout=known.rollout.pk)

    def _carry_out(self, others: list[tuple[Known, Tick, Seen]], view: View) -> None:
        """Effects that are no rollback, and what is left to do of rollbacks. What does not fit waits for its next tick."""
        until = time.monotonic() + max(0.05, EFFECTS_SHARE * self.tick_s)
        for done, (known, tick, seen) in enumerate(others):
            if time.monotonic() > until:
                log.info("effects_put_off", count=len(others) - done)
                break
            with self._one(known.rollout):
                is_back = known.rollout.state in {S.ROLLING_BACK, S.STUCK}
                known.took(take_back(known, tick, view, seen) if is_back else commit_tick(tick))
            self._keep_lead()

    def _await_zero(self, known: list[Known], view: View) -> None:
        """Looks for the acknowledgements of fresh rollbacks more often than once a tick, so that their clock is true."""
        until = min(time.monotonic() + ZERO_POLL_FOR_S, max(self._due + self.tick_s, time.monotonic()) - EARLY_S)
        left = [one for one in known if one.rollout.state == S.ROLLING_BACK and one.rollout.zero_at is None]
        while left and time.monotonic() < until:
            time.sleep(ZERO_POLL_S)
            self._keep_lead()
            self.clock.sync()
            fresh = look(left, view.gateways, self.clock.now(), view.fence)
            for one in list(left):
                is_over = True
                with self._one(one.rollout):
                    is_over = one.rollout.stable is None or look_for_zero(one, fresh)
                if is_over:
                    left.remove(one)

    # -- around a turn ----------------------------------------------------------------------------------------------

    def _leads(self) -> bool:
        if self.token is not None and renew(LEASE, self.owner, self.token, self.lease_s):
            self._renewed_at = time.monotonic()
            return True
        was, self.token = self.token, acquire(LEASE, self.owner, self.lease_s)
        self._renewed_at = time.monotonic()
        if self.token is not None:
            self.book.forget()
            lift_fences(self.token)
            log.info("engine_leads", owner=self.owner, token=self.token)
        elif was is not None:
            log.warning("engine_lost_lead", owner=self.owner, token=was)
        return self.token is not None

    def _keep_lead(self) -> None:
        """Within a long turn: extends the lease before it runs out. Raises LeadLost."""
        if self.token is None:
            raise LeadLost
        if time.monotonic() - self._renewed_at > self.lease_s / 3:
            if not renew(LEASE, self.owner, self.token, self.lease_s):
                log.warning("engine_lost_lead", owner=self.owner, token=self.token)
                self.token = None
                raise LeadLost
            self._renewed_at = time.monotonic()

    @contextmanager
    def _one(self, rollout: Rollout) -> Iterator[None]:
        """Whatever goes wrong with one rollout stays with it, and it is read again."""
        try:
            yield
        except Stale as error:
            log.warning("engine_fenced_out", rollout=rollout.pk, error=error.message)
            self.token = None
            self.book.forget()
        except StateChanged as error:
            log.info("tick_dropped", rollout=rollout.pk, error=error.message)
            self.book.drop(rollout.pk)
        except Exception as error:
            if _is_away(error):
                raise
            self.bad_attempts += 1
            self.book.drop(rollout.pk)
            # rendering a traceback with all its locals would take longer than a tick: plain text
            log.error("rollout_tick_failed", rollout=rollout.pk, traceback=traceback.format_exc())

    def _tell_of_broken(self) -> None:
        for pk, error in self.book.broken.items():
            self.bad_attempts += 1
            log.error("rollout_not_read", rollout=pk, error=repr(error))

    def _external_of(self, known: Known) -> dict[str, Reading | str]:
        if not known.counts_in_prometheus:
            return {}
        ahead_s = self.clock.ahead_s
        found = self.external.latest(known.rollout.pk)
        return {name: one if isinstance(one, str) else replace(one, at=one.at + ahead_s) for name, one in found.items()}

    def _tidy(self, everyone: list[Known]) -> None:
        """What keeps a long life short: old blocks are joined, and releases that nobody can go back to any more let go."""
        self.external.follow([one.rollout for one in everyone if one.counts_in_prometheus], fence=self.token or 0)
        grown = [one for one in everyone if one.blocks > MOST_BLOCKS + BLOCKS_OVER]
        for one in grown[:JOINED_AT_ONCE]:
            with self._one(one.rollout):
                one.blocks = join_old_blocks(one.rollout, fence=self.token or 0)
            self._keep_lead()
        if time.monotonic() - self._swept_at < SWEEP_EVERY_S:
            return
        self._swept_at = time.monotonic()
        for rollout in cooled(self.clock.now()):
            with self._one(rollout):
                let_go(rollout)
            self._keep_lead()


def _settled(
    known: list[Known], gateways: dict[int, list[Gateway]], readers: Readers
) -> Iterator[tuple[list[Known], dict[str, Page]]]:
    """Rollouts by environment, with what their gateways said, in the order in which these answer."""
    left: dict[int, list[Known]] = {}
    for one in known:
        left.setdefault(one.rollout.environment_id, []).append(one)
    while left:
        ready = [where for where in left if readers.are_settled(one.name for one in gateways[where])]
        for where in ready:
            yield left.pop(where), readers.take(one.name for one in gateways[where])
        if not ready:
            readers.wait()


def _suspects_first(known: Known) -> tuple[bool, int]:
    """Those that may have to be taken back in this very turn wait for nobody."""
    carry = known.carry
    return not (carry.failures.attempts or carry.has_failed or carry.gone_since is not None), known.rollout.pk


def _only_fails(known: Known) -> bool:
    return known.carry.failures.attempts > 0 and known.rollout.state in {S.SHIFTING, S.BAKING}


def _is_away(error: Exception) -> bool:
    """Whether the database is away for all of them; a lock that was not had concerns one rollout alone."""
    return isinstance(error, OperationalError) and (connection.connection is None or connection.connection.closed)
