"""The rollout loop: repair desired state → observe → evaluate → write, for every active rollout, every tick.

Two engines may run. The leader holds a database lease; its fencing token goes into every write, so that a leader whose lease
expired is fenced out. All state is in the database: any engine can go on from any line.
"""

from __future__ import annotations

import gc
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace

import structlog
from django.conf import settings
from django.db import OperationalError, close_old_connections

from ledger.actions.leadership import Leadership, LeadershipLost
from ledger.adapters.process_names import process_name
from ledger.queries.clock import DatabaseClock
from rollouts.actions.engine_effects import commit_tick, lift_rollout_fences
from rollouts.actions.instant_rollback import settle_ended
from rollouts.actions.tick_records import join_old_blocks
from rollouts.core.counter_deltas import Reading
from rollouts.core.decision import OPENING, TAKES_BACK
from rollouts.core.evaluate import TickInput, evaluate
from rollouts.core.lifecycle import RolloutState
from rollouts.core.tick import Tick
from rollouts.engine.desired_state import ensure_desired_state
from rollouts.engine.gateway_counters import CounterSnapshot, snapshot_of
from rollouts.engine.lag_metrics import observe_turn
from rollouts.engine.latency import LatencyRecorder
from rollouts.engine.odd_replicas import WAIT_S, ensure_set_aside, tallies_for
from rollouts.engine.prometheus_reader import PrometheusReader
from rollouts.engine.rollback import awaits_zero, check_zero_acknowledged, continue_rollback, is_confirmed
from rollouts.engine.stable_replicas import StableReplicas, ensure_replaced
from rollouts.engine.surge import ensure_replicas
from rollouts.engine.tick_input import looked_closer, needs_a_look, tick_input, with_tallies
from rollouts.engine.tick_writer import Hold, TickWriter
from rollouts.engine.timings import DEFAULT_LIMITS, DEFAULT_TIMINGS, EngineLimits, EngineTimings
from rollouts.engine.wakeup import Wakeup
from rollouts.engine.world import EngineCache, RolloutEntry, WorldState, gateways_of, load_world
from rollouts.queries import ended_to_settle
from serving.models import Gateway
from serving.ports import HostCounters, TrafficCounters
from serving.traffic.actions.routes import lift_fences
from serving.traffic.adapters.counter_readers import CounterReaders, StatsPage

log = structlog.get_logger(__name__)
S = RolloutState
LEASE = "engine"
Effect = tuple[RolloutEntry, Tick, CounterSnapshot, TickInput]


class Engine:
    """One engine process."""

    def __init__(
        self,
        counters: TrafficCounters,
        *,
        owner: str = "",
        tick_s: float | None = None,
        lease_s: float | None = None,
        hosts: HostCounters | None = None,
        external: PrometheusReader | None = None,
        clock: DatabaseClock | None = None,
        timings: EngineTimings = DEFAULT_TIMINGS,
        limits: EngineLimits = DEFAULT_LIMITS,
    ) -> None:
        self.counters, self.hosts, self._naming_until = counters, hosts, 0.0
        self.owner = owner or process_name()
        self.tick_s = settings.ENGINE_TICK_S if tick_s is None else tick_s
        self.lease_s = settings.ENGINE_LEASE_S if lease_s is None else lease_s
        self.lead = Leadership(LEASE, self.owner, self.lease_s)
        self.clock = clock or DatabaseClock()
        self.external = external or PrometheusReader(None)
        self.timings, self.limits = timings, limits
        self.cache = EngineCache()
        self.writer = TickWriter(self.lead, self.cache, limits)
        self._latency = LatencyRecorder()
        self._readers, self._early_readers = CounterReaders(counters), CounterReaders(counters)
        self._due = self._collected_at = time.monotonic()
        self._is_late_s = self._swept_at = 0.0
        self._is_failing = False
        self._deferred: list[int] = []  # rollouts whose effects did not fit into the last turn, in their order
        self._stables, self._wakeup = StableReplicas(), Wakeup()
        self._is_stopping = threading.Event()

    @property
    def token(self) -> int | None:
        """Of its term; None while another engine leads."""
        return self.lead.token

    # -- pace -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Ticks until `stop()`, then gives leadership back at once."""
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
                # by the schedule, not by when the turn ended. Missed ticks are skipped, not replayed.
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
        is_whole = time.monotonic() - self._collected_at > self.timings.full_gc_every_s
        gc.collect(2 if is_whole else 1)
        self._collected_at = time.monotonic() if is_whole else self._collected_at
        until = min(self._due, self.timings.next_look(began, time.monotonic())) if self._is_failing else self._due
        if self._wakeup.wait(max(0.001, until - time.monotonic())):
            early = min(began + self.timings.early_s, max(self._due, began))
            time.sleep(0 if self._is_stopping.is_set() else max(0.001, early - time.monotonic()))
        self._wakeup.forget()

    def _invalidate_cache(self) -> None:
        """Memory is not trusted: it is unknown which writes of the last turn were committed."""
        self.cache.forget()
        close_old_connections()

    # -- turns ------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One turn: whether this engine leads, having ticked every active rollout."""
        return self._turn(is_whole=True)

    def poll_pending(self) -> bool:
        """A turn between two ticks, over those rollouts that something other than time may move on."""
        return self._turn(is_whole=False)

    def _turn(self, *, is_whole: bool) -> bool:
        """Whether this engine leads at the turn's end.

        1. Renew the lease, or take it. Exit: another engine leads.
        2. In a new term, forget what is cached, and fence out engines of older terms.
        3. Read the database's clock, and which rollouts are active; log those that cannot be read.
        4. Ask every gateway for its counters, and load what the ticks rest on (`load_world`).
        5. As each environment's gateways answer, for each rollout: ensure its desired state, evaluate it, and write a
           rollback at once. What else there is to write is deferred.
        6. Write the deferred holds in batches, then the effects, as far as the tick has room for them; those that open, once it was
           looked for proofs and files.
        7. Wait shortly for the acknowledgement of rollbacks.
        8. Ask for the servers that the weights ahead take, as far as the tick has room for that.
        9. In a whole turn: join old blocks, release what nobody can go back to any more, note the lag.

        Exit at any of 5 to 9: the lease was lost within the turn.
        """
        began = time.monotonic()
        late_s, self._is_late_s = (self._is_late_s, 0.0) if is_whole else (0.0, self._is_late_s)
        token = self.token
        if not self.lead.take():
            return False
        if self.token != token:
            self.cache.forget()
            self._latency.forget()
            lift_fences(self.lead.fence)
            lift_rollout_fences(self.lead.fence)
        self.clock.sync()
        everyone = self.cache.read()
        self._log_unreadable()
        entries = sorted((one for one in everyone if is_whole or one.needs_fast_poll), key=_suspects_first)
        lags: list[float] = []
        try:
            self._tick_all(entries, self._readers if is_whole else self._early_readers, began, lags)
            if is_whole:
                self._tidy(everyone)
        except LeadershipLost:
            return False
        self._is_failing = any(one.is_suspect for one in entries)
        if is_whole:
            observe_turn([late_s + lag for lag in lags], time.monotonic() - began)
        return self.token is not None

    def _tick_all(self, entries: list[RolloutEntry], readers: CounterReaders, began: float, lags: list[float]) -> None:
        """Ticks these rollouts. Adds to `lags`, for each, the seconds between the turn's beginning and its own."""
        if not entries:
            return
        gateways = gateways_of(entries)
        models: dict[int, set[str]] = {where: set() for where in gateways}
        for one in entries:
            models[one.rollout.environment_id].add(one.rollout.model.slug)
        readers.ask([gateway for here in gateways.values() for gateway in here], models)
        world = load_world(entries, gateways, self.clock.now(), self.lead.fence)
        self._naming_until = time.monotonic() + WAIT_S
        holds: list[Hold] = []
        effects: list[Effect] = []
        for batch, pages in _settled(entries, gateways, readers):
            for one in batch:
                lags.append(time.monotonic() - began)
                self._tick_one(one, world, pages, holds, effects)
                self.lead.keep()
        self.writer.flush_holds(holds)
        self._apply_effects(effects, world)
        for one in entries:
            with self.writer.one(one.rollout):
                ensure_set_aside(one, world)
        self._await_rollback_ack(entries, world)
        self._ask_ahead(entries, world)

    def _tick_one(
        self,
        entry: RolloutEntry,
        world: WorldState,
        pages: dict[str, StatsPage],
        holds: list[Hold],
        effects: list[Effect],
    ) -> None:
        """Evaluates a rollout. Writes a rollback at once; adds less urgent work to `holds` or `effects`."""
        rollout = entry.rollout
        with self.writer.one(rollout):
            slot, taken_by = world.followed(rollout)
            counters = snapshot_of(
                rollout, world.gateways[rollout.environment_id], pages, entry.slow_edges, stale_s=entry.policy.stale_s,
                now=world.at, slot=slot, taken_by=taken_by, before=entry.engine_state.readings,
            )  # fmt: skip
            here = [one.name for one in world.gateways[rollout.environment_id]]
            self._latency.read(rollout, here, pages, world.at)
            desired = ensure_desired_state(entry, world)
            given = tick_input(entry, world, counters, self._external_of(entry), desired)
            tick = evaluate(given, gone_over_s=self.timings.gone_over_s)
            tallies = tallies_for(tick, entry, world, self.hosts, until=self._naming_until)
            if tallies:
                tick = evaluate(with_tallies(entry, given, tallies), gone_over_s=self.timings.gone_over_s)
            is_due = self._stables.is_due(entry, tick, world.at)
            if tick.decision.action in TAKES_BACK:
                entry.mark_written(commit_tick(rollout, tick, fence=world.fence))
            elif tick.is_effect or tick.warning or is_due or _is_rolling_back(entry):
                effects.append((entry, tick, counters, given))
            else:
                hold = self.writer.defer(entry, tick)
                holds += [hold] if hold is not None else []

    def _apply_effects(self, effects: list[Effect], world: WorldState) -> None:
        """Effects other than rollbacks, and remaining work of rollbacks. The rest goes first next time."""
        until = self._room_until()
        place = {pk: number for number, pk in enumerate(self._deferred)}
        effects.sort(key=lambda one: (not _is_rolling_back(one[0]), place.get(one[0].rollout.pk, len(place))))
        self._deferred, holds = [], list[Hold]()
        for done, effect in enumerate(effects):
            if time.monotonic() > until:
                self._deferred = [one[0].rollout.pk for one in effects[done:]]
                log.info("effects_deferred", count=len(self._deferred))
                break
            with self.writer.one(effect[0].rollout):
                holds += self._apply(effect, world)
            self.lead.keep()
        self.writer.flush_holds(holds)

    def _apply(self, effect: Effect, world: WorldState) -> list[Hold]:
        """What opens looks closer first, here, where no rollback waits for it any more. So it may turn out to be a hold, to be written."""
        entry, tick, counters, given = effect
        if _is_rolling_back(entry) and not tick.is_effect:
            within_s = self.timings.confirm_within_s
            entry.mark_written(continue_rollback(entry, tick, world, counters, confirm_within_s=within_s))
            return []
        if tick.decision.action in OPENING and needs_a_look(entry):
            given = looked_closer(entry, given)
            tick = evaluate(given, gone_over_s=self.timings.gone_over_s)
        if (more := self._stables.with_tallies(entry, tick, given, world, self.hosts)) is not None:
            tick = evaluate(more, gone_over_s=self.timings.gone_over_s)
        if tick.is_effect or tick.warning:
            entry.mark_written(commit_tick(entry.rollout, tick, fence=world.fence))
            return []
        hold = self.writer.defer(entry, tick)
        return [hold] if hold is not None else []

    def _await_rollback_ack(self, entries: list[RolloutEntry], world: WorldState) -> None:
        """Looks for the acknowledgements of fresh rollbacks more often than once a tick, so that their clock is true."""
        timings = self.timings
        next_turn = max(self._due + self.tick_s, time.monotonic()) - timings.early_s
        until = min(time.monotonic() + timings.zero_poll_for_s, next_turn)
        left = [
            one
            for one in entries
            if one.rollout.state != S.STUCK and _is_rolling_back(one) and awaits_zero(one.rollout)
        ]
        while left and time.monotonic() < until:
            time.sleep(timings.zero_poll_s)
            self.lead.keep()
            self.clock.sync()
            fresh = load_world(left, world.gateways, self.clock.now(), world.fence)
            for one in list(left):
                is_over = True
                with self.writer.one(one.rollout):
                    is_over = one.rollout.stable is None or check_zero_acknowledged(one, fresh)
                if is_over:
                    left.remove(one)

    def _ask_ahead(self, entries: list[RolloutEntry], world: WorldState) -> None:
        """Last in a turn: nothing becomes safer by it. Who finds no room is asked for in the next; gateways, which may hang, come last."""
        until, follow = self._room_until(), lambda one, now: self._stables.follow(one, now, self.hosts)
        asks = [(one, ask) for ask in (ensure_replicas, ensure_replaced) for one in entries]
        for one, ask in [*asks, *((one, follow) for one in self._stables.untold(entries, world))]:
            if time.monotonic() > until:
                break
            with self.writer.one(one.rollout):
                ask(one, world)
            self.lead.keep()

    def _room_until(self) -> float:
        """Deadline of work that is not urgent, by the clock of the turns."""
        return time.monotonic() + max(0.05, self.timings.effects_share * self.tick_s)

    # -- around a turn ----------------------------------------------------------------------------------------------

    def _log_unreadable(self) -> None:
        for pk, error in self.cache.broken.items():
            self.writer.bad_attempts += 1
            log.error("rollout_not_read", rollout=pk, error=repr(error))

    def _external_of(self, entry: RolloutEntry) -> dict[str, Reading | str]:
        """By guard that counts in Prometheus, its reading or why there is none."""
        if not entry.counts_in_prometheus:
            return {}
        ahead_s = self.clock.ahead_s
        found = self.external.latest(entry.rollout.pk)
        return {name: one if isinstance(one, str) else replace(one, at=one.at + ahead_s) for name, one in found.items()}

    def _tidy(self, everyone: list[RolloutEntry]) -> None:
        """Stores windows of latency, joins old blocks, and releases servers that are no rollback target any more."""
        self.external.follow([one.rollout for one in everyone if one.counts_in_prometheus], fence=self.lead.fence)
        self._latency.flush({one.rollout.pk for one in everyone}, self.clock.now().timestamp(), fence=self.lead.fence)
        self._stables.keep({one.rollout.pk for one in everyone})
        most = self.limits.most_blocks
        grown = [one for one in everyone if one.blocks > most + self.limits.blocks_over]
        for one in grown[: self.limits.joined_at_once]:
            with self.writer.one(one.rollout):
                one.blocks = join_old_blocks(one.rollout, fence=self.lead.fence, most=most)
            self.lead.keep()
        if time.monotonic() - self._swept_at < self.timings.sweep_every_s:
            return
        self._swept_at = time.monotonic()
        for rollout in ended_to_settle(self.clock.now()):
            with self.writer.one(rollout):
                settle_ended(rollout)
            self.lead.keep()


def _settled(
    entries: list[RolloutEntry], gateways: dict[int, list[Gateway]], readers: CounterReaders
) -> Iterator[tuple[list[RolloutEntry], dict[str, StatsPage]]]:
    """Rollouts by environment, with their gateways' counts, in the order of the answers."""
    left: dict[int, list[RolloutEntry]] = {}
    for one in entries:
        left.setdefault(one.rollout.environment_id, []).append(one)
    while left:
        ready = [where for where in left if readers.are_settled(one.name for one in gateways[where])]
        for where in ready:
            yield left.pop(where), readers.take(one.name for one in gateways[where])
        if not ready:
            readers.wait()


def _is_rolling_back(entry: RolloutEntry) -> bool:
    """Whether weight 0 was written, by a rollback or for another look, and is not confirmed yet."""
    withdrawn = entry.rollout.is_withdrawn and not is_confirmed(entry.rollout)
    return withdrawn or entry.rollout.state in {S.ROLLING_BACK, S.STUCK}


def _suspects_first(entry: RolloutEntry) -> tuple[bool, int]:
    """Sort key: rollouts that may roll back in this turn come first."""
    return not entry.has_failed, entry.rollout.pk
