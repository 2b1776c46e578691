"""The rollout loop: observe → decide → apply at most one effect → record, for every active rollout, every tick.

Two engines may run. One leads by a database lease; its fencing token goes into every write, so that one that slept
through its lease is refused. All state is in the database: any engine can go on from any line.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import structlog
from django.conf import settings
from django.db import OperationalError, close_old_connections, connection

from ledger.actions import dispatch_due
from ledger.clock import DatabaseClock
from rollouts.actions.engine_effects import commit_tick, lift_rollout_fences, release_previous
from rollouts.actions.tick_records import Tick, join_old_blocks
from rollouts.core.counter_deltas import Reading
from rollouts.core.decision import Action
from rollouts.core.lifecycle import RolloutState
from rollouts.core.tick_history import MOST_BLOCKS
from rollouts.engine.evaluate import judge
from rollouts.engine.gateway_counters import CounterReaders, CounterSnapshot, StatsPage, snapshot_of
from rollouts.engine.lag_metrics import LagMetrics
from rollouts.engine.leadership import Leadership, LeadershipLost
from rollouts.engine.prometheus_reader import PrometheusReader
from rollouts.engine.rollback import check_zero_acknowledged, continue_rollback
from rollouts.engine.tick_writer import Hold, TickWriter
from rollouts.engine.wakeup import Wakeup
from rollouts.engine.world import EngineCache, RolloutEntry, WorldState, gateways_of, load_world
from rollouts.queries import expired_undo_windows
from serving.actions.routes import lift_fences
from serving.models import Gateway
from serving.ports import TrafficCounters

log = structlog.get_logger(__name__)
S = RolloutState
DISPATCH_EVERY_S = 2.0
#: Promoted rollouts whose old release may be let go are looked for this often.
SWEEP_EVERY_S = 5.0
#: After a rollback was written, its acknowledgement is looked for this often, for this long, within the tick.
ZERO_POLL_S, ZERO_POLL_FOR_S = 0.05, 1.0
#: A tick that was woken does not begin sooner than this after the one before it.
EARLY_S = 0.2
#: While a candidate fails more than now and then, the next look comes sooner. More than `breach.FAILING_OVER_S`.
LOOK_AGAIN_S = 0.5
#: A candidate without a server is gone when it still has none after this long; one that failed before, at once.
GONE_OVER_S = 0.5
#: Effects that are no rollback may take this share of a tick; what is left of them waits for the next one.
EFFECTS_SHARE = 0.4
#: A rollout has its old blocks joined when it has so many more than it may keep; only so many rollouts in a turn.
BLOCKS_OVER, JOINED_AT_ONCE = 32, 4
#: All objects in memory are searched for garbage so seldom; new ones in every rest.
COLLECT_EVERY_S = 60.0


class Engine:
    """One engine process."""

    def __init__(
        self,
        counters: TrafficCounters,
        *,
        owner: str = "",
        tick_s: float | None = None,
        lease_s: float | None = None,
        external: PrometheusReader | None = None,
        clock: DatabaseClock | None = None,
        pace_file: Path | None = None,
    ) -> None:
        self.counters = counters
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}"
        self.tick_s = settings.ENGINE_TICK_S if tick_s is None else tick_s
        self.lease_s = settings.ENGINE_LEASE_S if lease_s is None else lease_s
        self.lead = Leadership(self.owner, self.lease_s)
        self.clock = clock or DatabaseClock()
        self.external = external or PrometheusReader(None)
        self.pace = LagMetrics(self.owner, pace_file)
        self.book = EngineCache()
        self.writer = TickWriter(self.lead, self.book)
        self._readers, self._early_readers = CounterReaders(counters), CounterReaders(counters)
        self._due = time.monotonic()
        self._is_late_s = self._swept_at = 0.0
        self._collected_at = time.monotonic()
        self._is_failing = False
        self._put_off: list[int] = []  # rollouts whose effects found no room in the last turn, in their order
        self._wakeup = Wakeup()
        self._is_stopping = threading.Event()

    @property
    def token(self) -> int | None:
        """Of its term; None while another engine leads."""
        return self.lead.token

    @property
    def bad_attempts(self) -> int:
        """How many ticks broke."""
        return self.writer.bad_attempts

    # -- pace -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Ticks until `stop()`, then gives leadership back at once."""
        threading.Thread(target=self._housekeeping, name="housekeeping", daemon=True).start()
        gc.disable()  # it would run in the middle of turns, and take a quarter of their time; `_rest` collects
        gc.freeze()
        try:
            self._run()
        finally:
            gc.enable()
        self.writer.write_unwritten()
        self.lead.give_back()
        self.external.stop()

    def _run(self) -> None:
        self._due = time.monotonic()
        while not self._is_stopping.is_set():
            began = time.monotonic()
            is_due = began >= self._due
            self._is_late_s = max(0.0, began - self._due)
            try:
                self.step() if is_due else self.poll_pending()
            except OperationalError as error:
                log.warning("database_away", error=str(error))
                self._invalidate_cache()
            except Exception:  # a loop that guards traffic does not end over one bad tick
                self.writer.bad_attempts += 1
                log.error("engine_tick_failed", traceback=traceback.format_exc())
                self._invalidate_cache()
            if is_due:
                # by the schedule, not by when the turn ended; what was slept through altogether is not made up for
                self._due = max(self._due + self.tick_s, time.monotonic() - self.tick_s)
            self._rest(began)

    def wake(self) -> None:
        """Lets the next look come at once: a server or a route changed. May be called by any thread or signal handler."""
        self._wakeup.call()

    def stop(self) -> None:
        """Ends `run` after the turn that it is in. May be called as `wake` may."""
        self._is_stopping.set()
        self.wake()

    def _rest(self, began: float) -> None:
        """Waits until the next turn is due or called for. Calls that came together are one."""
        is_whole = time.monotonic() - self._collected_at > COLLECT_EVERY_S
        gc.collect(2 if is_whole else 1)
        self._collected_at = time.monotonic() if is_whole else self._collected_at
        until = min(self._due, began + LOOK_AGAIN_S) if self._is_failing else self._due
        if self._wakeup.wait(max(0.001, until - time.monotonic())):
            early = min(began + EARLY_S, max(self._due, began))
            time.sleep(0 if self._is_stopping.is_set() else max(0.001, early - time.monotonic()))
        self._wakeup.forget()

    def _housekeeping(self) -> None:
        """What must not delay a tick, whoever leads: a broker that hangs, for one."""
        while not self._is_stopping.wait(DISPATCH_EVERY_S):
            try:
                dispatch_due()
            except Exception:  # it is tried again; jobs are rows, and rows wait
                log.warning("housekeeping_failed", traceback=traceback.format_exc())
                close_old_connections()
        connection.close()

    def _invalidate_cache(self) -> None:
        """Nothing in memory is trusted: nobody knows what of the last turn was committed."""
        self.book.forget()
        close_old_connections()

    # -- turns ------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One turn: whether this engine leads, having ticked every active rollout."""
        return self._turn(is_whole=True)

    def poll_pending(self) -> bool:
        """A turn between two ticks, over those rollouts that something other than time may move on."""
        return self._turn(is_whole=False)

    def _turn(self, *, is_whole: bool) -> bool:
        began = time.monotonic()
        late_s, self._is_late_s = (self._is_late_s, 0.0) if is_whole else (0.0, self._is_late_s)
        token = self.token
        if not self.lead.take():
            return False
        if self.token != token:
            self.book.forget()
            lift_fences(self.lead.fence)
            lift_rollout_fences(self.lead.fence)
        self.clock.sync()
        everyone = self.book.read()
        self._log_unreadable()
        known = sorted((one for one in everyone if is_whole or one.needs_fast_poll), key=_suspects_first)
        lags: list[float] = []
        try:
            self._tick_all(known, self._readers if is_whole else self._early_readers, began, lags)
            if is_whole:
                self._tidy(everyone)
        except LeadershipLost:
            return False
        self._is_failing = any(one.is_suspect for one in known)
        if is_whole:
            self.pace.turn(self.clock.now(), [late_s + lag for lag in lags], time.monotonic() - began)
        return self.token is not None

    def _tick_all(self, known: list[RolloutEntry], readers: CounterReaders, began: float, lags: list[float]) -> None:
        """Ticks these rollouts. Adds to `lags`, for each, the seconds between the turn's beginning and its own."""
        if not known:
            return
        gateways = gateways_of(known)
        models: dict[int, set[str]] = {where: set() for where in gateways}
        for one in known:
            models[one.rollout.environment_id].add(one.rollout.model.slug)
        readers.ask([gateway for here in gateways.values() for gateway in here], models)
        view = load_world(known, gateways, self.clock.now(), self.lead.fence)
        holds: list[Hold] = []
        others: list[tuple[RolloutEntry, Tick, CounterSnapshot]] = []
        for batch, pages in _settled(known, gateways, readers):
            for one in batch:
                lags.append(time.monotonic() - began)
                self._judged(one, view, pages, holds, others)
                self.lead.keep()
        self.writer.flush_holds(holds)
        self._carry_out(others, view)
        self._await_rollback_ack(known, view)

    def _judged(
        self,
        known: RolloutEntry,
        view: WorldState,
        pages: dict[str, StatsPage],
        holds: list[Hold],
        others: list[tuple[RolloutEntry, Tick, CounterSnapshot]],
    ) -> None:
        """Judges one rollout. A rollback is written at once; what is not so urgent is put off."""
        rollout = known.rollout
        with self.writer.one(rollout):
            gateways, stale_s = view.gateways[rollout.environment_id], known.policy.stale_s
            slot, taken_by = view.followed(rollout)
            seen = snapshot_of(
                rollout, gateways, pages, known.slow_edges, stale_s=stale_s, now=view.at, slot=slot, taken_by=taken_by,
                before=known.carry.readings,
            )  # fmt: skip
            external = self._external_of(known)
            tick = judge(known, view, seen, external, gone_over_s=GONE_OVER_S)
            if tick.decision.action is Action.ROLL_BACK:
                known.wrote(commit_tick(tick))
            elif tick.is_effect or tick.warning or _is_back(known):
                others.append((known, tick, seen))
            else:
                hold = self.writer.put_off(known, tick)
                holds += [hold] if hold is not None else []

    def _carry_out(self, others: list[tuple[RolloutEntry, Tick, CounterSnapshot]], view: WorldState) -> None:
        """Effects that are no rollback, and what is left to do of rollbacks. What does not fit goes first next time."""
        until = time.monotonic() + max(0.05, EFFECTS_SHARE * self.tick_s)
        place = {pk: number for number, pk in enumerate(self._put_off)}
        others.sort(key=lambda one: (not _is_back(one[0]), place.get(one[0].rollout.pk, len(place))))
        self._put_off = []
        for done, (known, tick, seen) in enumerate(others):
            if time.monotonic() > until:
                self._put_off = [one.rollout.pk for one, _, _ in others[done:]]
                log.info("effects_put_off", count=len(self._put_off))
                break
            with self.writer.one(known.rollout):
                known.wrote(continue_rollback(known, tick, view, seen) if _is_back(known) else commit_tick(tick))
            self.lead.keep()

    def _await_rollback_ack(self, known: list[RolloutEntry], view: WorldState) -> None:
        """Looks for the acknowledgements of fresh rollbacks more often than once a tick, so that their clock is true."""
        until = min(time.monotonic() + ZERO_POLL_FOR_S, max(self._due + self.tick_s, time.monotonic()) - EARLY_S)
        left = [one for one in known if one.rollout.state == S.ROLLING_BACK and one.rollout.zero_at is None]
        while left and time.monotonic() < until:
            time.sleep(ZERO_POLL_S)
            self.lead.keep()
            self.clock.sync()
            fresh = load_world(left, view.gateways, self.clock.now(), view.fence)
            for one in list(left):
                is_over = True
                with self.writer.one(one.rollout):
                    is_over = one.rollout.stable is None or check_zero_acknowledged(one, fresh)
                if is_over:
                    left.remove(one)

    # -- around a turn ----------------------------------------------------------------------------------------------

    def _log_unreadable(self) -> None:
        for pk, error in self.book.broken.items():
            self.writer.bad_attempts += 1
            log.error("rollout_not_read", rollout=pk, error=repr(error))

    def _external_of(self, known: RolloutEntry) -> dict[str, Reading | str]:
        if not known.counts_in_prometheus:
            return {}
        ahead_s = self.clock.ahead_s
        found = self.external.latest(known.rollout.pk)
        return {name: one if isinstance(one, str) else replace(one, at=one.at + ahead_s) for name, one in found.items()}

    def _tidy(self, everyone: list[RolloutEntry]) -> None:
        """What keeps a long life short: old blocks are joined, and releases that nobody can go back to any more let go."""
        self.external.follow([one.rollout for one in everyone if one.counts_in_prometheus], fence=self.lead.fence)
        grown = [one for one in everyone if one.blocks > MOST_BLOCKS + BLOCKS_OVER]
        for one in grown[:JOINED_AT_ONCE]:
            with self.writer.one(one.rollout):
                one.blocks = join_old_blocks(one.rollout, fence=self.lead.fence)
            self.lead.keep()
        if time.monotonic() - self._swept_at < SWEEP_EVERY_S:
            return
        self._swept_at = time.monotonic()
        for rollout in expired_undo_windows(self.clock.now()):
            with self.writer.one(rollout):
                release_previous(rollout)
            self.lead.keep()


def _settled(
    known: list[RolloutEntry], gateways: dict[int, list[Gateway]], readers: CounterReaders
) -> Iterator[tuple[list[RolloutEntry], dict[str, StatsPage]]]:
    """Rollouts by environment, with what their gateways said, in the order in which these answer."""
    left: dict[int, list[RolloutEntry]] = {}
    for one in known:
        left.setdefault(one.rollout.environment_id, []).append(one)
    while left:
        ready = [where for where in left if readers.are_settled(one.name for one in gateways[where])]
        for where in ready:
            yield left.pop(where), readers.take(one.name for one in gateways[where])
        if not ready:
            readers.wait()


def _is_back(known: RolloutEntry) -> bool:
    """Whether it was taken back, and is not done with that yet."""
    return known.rollout.state in {S.ROLLING_BACK, S.STUCK}


def _suspects_first(known: RolloutEntry) -> tuple[bool, int]:
    """Those that may have to be taken back in this very turn wait for nobody."""
    carry = known.carry
    return not (carry.failures.attempts or carry.has_failed or carry.gone_since is not None), known.rollout.pk
