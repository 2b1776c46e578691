"""Puts quiet models to sleep and wakes a model at its next request, by the gateways' counters.

It runs in the agent's process: without an agent no server is unloaded or loaded. Of several agents one leads, by a lease. Its state is in
the database, so that any agent can continue. Unknown counts are taken for traffic.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog
from django.db import Error as DatabaseFailure
from django.db import close_old_connections, connection

from accounts.core.access import Actor
from ledger.actions.leadership import Leadership
from ledger.core.errors import DomainError
from ledger.queries.clock import DatabaseClock
from registry.models import Release
from registry.queries import manifest_of
from serving.environments.core.sleep_lifecycle import SleepState
from serving.models import Environment, Gateway, Sleep
from serving.ports import TrafficCounters
from serving.targets.actions.sleeping import (
    continue_waking,
    keep_quiet,
    note_sleep_trouble,
    put_to_sleep,
    unload_asleep,
    wake_model,
)
from serving.targets.core.placement import demand_of
from serving.targets.core.sleep import (
    FRESH_S,
    Count,
    Quiet,
    Yielder,
    heard,
    how_to_end,
    is_demand,
    to_make_room,
    why_awake,
    why_unknown,
)
from serving.targets.queries import gateways_in
from serving.targets.queries.placement import Fleet, fleet_now, spots_for
from serving.targets.queries.sleep import Sleeper, is_by_hand, quiet_of, sleepers, unplaced, watched_sleeps
from serving.traffic.adapters.counter_readers import CounterReaders, StatsPage
from serving.traffic.adapters.in_flight import InFlight, InFlightCounters
from serving.traffic.core.gateway_standing import is_gone, is_out_of_use
from serving.traffic.queries.routes import acknowledgements

log = structlog.get_logger(__name__)
S = SleepState
LEASE = "sleep_watch"
#: Longer than a look. After this time another agent takes over from a frozen leader.
LEASE_S = 15.0
ACTOR = Actor.system("sleep-watch")
EVERY_S = 2.0
#: The database ends this thread's transaction after 3 s without a statement: a rollback may wait for its locks.
_RESIGN = "SET idle_in_transaction_session_timeout = '3s'"
#: Seconds between two writes of `Sleep.quiet_since`. A new leader takes requests since the last write for traffic.
WRITE_EVERY_S = 30.0
#: What one look does at the most, in seconds by kind, one model at least; the next look begins where this one stopped. Those that
#: somebody waits for come first.
MOST_S = {"waking": 3.0, "asleep": 1.0, "falling asleep": 1.0}


@dataclass
class _SleepLook:
    """A model that may sleep, or does, in one look; `before`: what was known at the last one. `gateways`: those that count. `late`: those
    of them that do not answer for it yet, of a model that sleeps. `trouble`: as this look found it; None: it did not come to that."""

    sleep: Sleep
    sleeper: Sleeper
    gateways: Sequence[Gateway]
    before: Quiet
    quiet: Quiet
    late: Sequence[str] = ()
    trouble: str | None = None

    @property
    def is_asked(self) -> bool:
        """A request was counted since the last look."""
        return is_demand(self.before, self.quiet, is_by_hand=is_by_hand(self.sleep))

    @property
    def is_to_wake(self) -> bool:
        """Somebody waits for it, or will."""
        is_called = bool(self.sleeper.needs) or (self.is_asked and self.sleep.loads_on_demand)
        return self.sleep.state == S.WAKING or (self.sleep.state == S.ASLEEP and is_called)

    def why_awake(self, after_s: int | None, now: float) -> str:
        since = self.sleep.state_since
        needs = (*self.sleeper.needs, *self.sleeper.by_hand)
        return why_awake(
            after_s, self.quiet, awake_since=since.timestamp() if since is not None else 0.0, needs=needs, now=now
        )


class SleepWatch:
    """Runs in a thread of its own. `clock` is the one that `counters` are dated by."""

    def __init__(
        self, counters: TrafficCounters, in_flight: InFlightCounters, lead: Leadership, clock: DatabaseClock
    ) -> None:
        self.in_flight, self.lead, self.clock = in_flight, lead, clock
        self._busy = InFlight(in_flight)
        self._readers = CounterReaders(counters)
        self._quiet: dict[int, Quiet] = {}
        self._written_at: dict[int, float] = {}
        self._stopped_at: dict[str, int] = {}

    def run(self, stopping: threading.Event) -> None:
        """Looks until `stopping` is set, then gives leadership back."""
        while not stopping.wait(EVERY_S):
            self._try(self._look)
        self._try(self.lead.give_back)
        connection.close()

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception:  # the database may be away
            log.warning("sleep_watch_failed", traceback=traceback.format_exc())
            self._quiet.clear()
            close_old_connections()

    def _look(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_RESIGN)
        if self.lead.take():
            self.clock.sync()
            self.turn()
        else:
            self._quiet.clear()

    def turn(self) -> None:
        """One look at every model that may sleep, or does."""
        rows = watched_sleeps()
        self._quiet = {row.pk: self._known(row) for row in rows}
        if not rows:
            return
        gateways = gateways_in({row.environment_id for row in rows})
        pages = self._read(rows, gateways)
        at = self.clock.now()
        now, served = at.timestamp(), sleepers({row.place for row in rows})
        every = [one for here in gateways.values() for one in here]
        out_of_use = {one.name for one in every if is_out_of_use(one.seen_at, one.drained_at, at)}
        gone = out_of_use | {one.name for one in every if is_gone(one.seen_at, at)}
        watched = []
        for row in rows:
            if row.place not in served:
                continue  # no longer served there
            here, before = gateways[row.environment_id], self._quiet[row.pk]
            told = {one.name: _count(pages.get(one.name), row.model.slug, now) for one in here}
            quiet = self._quiet[row.pk] = heard(before, told, now, gone=out_of_use)
            away = gone if is_by_hand(row) else out_of_use  # a person may know that it serves nobody
            left = [one for one in here if told[one.name] is not None or one.name not in away]
            watched.append(_SleepLook(row, served[row.place], left, before, quiet))
        self._note_late([one for one in watched if one.sleep.state == S.ASLEEP and one.sleeper.is_loaded])
        awake = [one for one in watched if one.sleep.state == S.AWAKE]
        self._busy = InFlight(self.in_flight, (gateway for one in watched for gateway in one.gateways))
        waking = [one for one in watched if one.is_to_wake]
        asleep = [one for one in watched if one.sleep.state == S.ASLEEP and not one.is_to_wake]
        self._each("waking", waking, self._look_asleep)
        self._each("asleep", asleep, self._look_asleep)
        self._each("falling asleep", awake, partial(self._look_awake, now=now))
        self._guarded(partial(self._make_room, awake, now))
        for one in watched:
            self._write(one)
            _note_trouble(one)

    def _note_late(self, ones: Sequence[_SleepLook]) -> None:
        """Before anybody asks what is in flight: of what all gateways answer for, there is only ever less of it."""
        acks = acknowledgements([one.sleeper.route for one in ones], self.clock.now()) if ones else {}
        for one in ones:
            taken_by = acks[one.sleeper.route.pk].taken_by
            one.late = [gateway.name for gateway in one.gateways if gateway.pk not in taken_by]

    def _known(self, row: Sleep) -> Quiet:
        """Of what a person had sleep nothing is known at first, so that what was counted until then wakes nobody."""
        if row.state == S.ASLEEP and not row.counts:
            return quiet_of(row)
        return self._quiet.get(row.pk) or quiet_of(row)

    def _each(self, kind: str, ones: Sequence[_SleepLook], look: Callable[[_SleepLook], None]) -> None:
        """As many as there is time for. Whose look failed, or did not come, was not asked yet as far as the next one knows."""
        stopped_at = self._stopped_at.pop(kind, 0)
        order = sorted(ones, key=lambda one: (one.sleep.pk < stopped_at, one.sleep.pk))
        began = time.monotonic()
        for number, one in enumerate(order):
            if number and time.monotonic() - began > MOST_S[kind]:
                self._stopped_at.setdefault(kind, one.sleep.pk)
            is_done = False
            try:
                is_done = kind not in self._stopped_at and self._guarded(partial(look, one))
            except DatabaseFailure:
                self._stopped_at[kind] = (
                    one.sleep.pk + 1
                )  # what fails here may fail here again, and keeps none of the others
                raise
            finally:
                if not is_done and one.sleep.state != S.AWAKE:
                    one.quiet = self._quiet[one.sleep.pk] = one.before

    def _read(self, rows: Iterable[Sleep], gateways: Mapping[int, list[Gateway]]) -> dict[str, StatsPage]:
        models: dict[int, set[str]] = {where: set() for where in gateways}
        for row in rows:
            models[row.environment_id].add(row.model.slug)
        every = [one for here in gateways.values() for one in here]
        self._readers.ask(every, models)
        names = [one.name for one in every]
        while not self._readers.are_settled(names):
            self._readers.wait()
        return self._readers.take(names)

    def _guarded(self, do: Callable[[], None]) -> bool:
        """Whether it went well. A failure, or a change that came first, delays no other model; the next look tries again.

        Raises DatabaseFailure: the next look takes another connection.
        """
        try:
            do()
        except DomainError as error:
            log.info("sleep_watch_tries_again", why=error.message)
            return False
        except DatabaseFailure:
            raise
        except Exception:
            log.warning("sleep_watch_failed", traceback=traceback.format_exc())
            return False
        return True

    def _look_awake(self, one: _SleepLook, now: float) -> None:
        one.trouble = why_unknown(one.quiet, now)
        if not one.why_awake(one.sleep.unload_after_s, now):
            since = one.quiet.since if one.quiet.since is not None else now
            self._put_to_sleep(one, f"Nobody asked it for {now - since:.0f} s.", now)

    def _look_asleep(self, one: _SleepLook) -> None:
        row, sleeper = one.sleep, one.sleeper
        if row.state == S.WAKING:
            continue_waking(actor=ACTOR, sleep=row)
        elif sleeper.needs:
            self._wake(one, f"It is needed: {'; '.join(sleeper.needs)}.")
        elif one.is_asked and row.loads_on_demand:
            self._wake(one, "A request came for it.")
        else:
            if not row.counts:
                self._write(one, at_once=True)
            if sleeper.is_loaded:
                one.trouble = self._unload(one)

    def _wake(self, one: _SleepLook, reason: str) -> None:
        row = one.sleep
        one.sleep = wake_model(actor=ACTOR, model=row.model, environment=row.environment, reason=reason)
        self._write(
            one, at_once=True
        )  # after it: a request that was written down before it woke the model would be forgotten with this thread
        if one.sleep.state == S.WAKING:
            continue_waking(actor=ACTOR, sleep=one.sleep)

    def _put_to_sleep(self, one: _SleepLook, reason: str, now: float) -> None:
        """Not while a stream is under way, which is counted when it ends; nor by what was counted a while ago, nor by who leads no more."""
        if self._is_unclear(one):
            return
        if self._busy.on(one.sleeper.route.stable, one.gateways).active:
            one.quiet = self._quiet[one.sleep.pk] = replace(one.quiet, since=now)
            return
        if self.clock.now().timestamp() - now > FRESH_S or not self.lead.take():
            return
        self._write(one, at_once=True)
        row = one.sleep
        one.sleep = put_to_sleep(actor=ACTOR, model=row.model, environment=row.environment, reason=reason)

    def _is_unclear(self, one: _SleepLook) -> bool:
        """Whether nobody can tell what is in flight on it: no quiet, and no request either."""
        told = self._busy.on(one.sleeper.route.stable, one.gateways)
        if told.active or not told.unknown:
            return False
        one.trouble = (
            f"What is in flight on its servers is not known, and that is never taken for quiet: {told.unknown}."
        )
        return True

    def _unload(self, one: _SleepLook) -> str:
        """Why its servers stay loaded yet, as a sentence; empty where they are drained now."""
        if one.late:
            silent = [name for name in one.late if name in one.quiet.silent]
            said = f"Its servers stay until every gateway answers for it: {', '.join(one.late)} has not taken that yet."
            return f"{said} {how_to_end(silent)}".rstrip()
        told = self._busy.on(one.sleeper.route.stable, one.gateways)
        if why := told.active or told.unknown:
            said = f"Its servers stay until nothing is in flight on them: {why}."
            return said if told.active else f"{said} {how_to_end(one.quiet.silent)}".rstrip()
        unload_asleep(actor=ACTOR, sleep=one.sleep)
        return ""

    def _make_room(self, awake: Sequence[_SleepLook], now: float) -> None:
        """For the first that is wanted, has no room and could get some so: the others' turn comes with the next look."""
        may_yield = [one for one in awake if one.sleep.yields_after_s is not None]
        may_yield = [one for one in may_yield if not one.why_awake(one.sleep.yields_after_s, now)]
        if not may_yield:
            return
        short = unplaced()
        if not short:
            return
        may_yield = [one for one in may_yield if not self._is_unclear(one)]
        asleep = {
            one.key for one in sleepers({row.place for row in watched_sleeps() if row.state == S.ASLEEP}).values()
        }
        fleet = fleet_now().about.soon(asleep)
        for release, environment in short:
            chosen = _least_used(release, environment, may_yield, fleet)
            for one in chosen:
                idle_s = now - (one.quiet.since or now)
                reason = (
                    f"It makes room for {release.model.slug} {release.name} in {environment.slug}: nobody asked it for {idle_s:.0f} s, "
                    "and no other that may yield was asked longer ago."
                )
                self._guarded(partial(self._put_to_sleep, one, reason, now))
            if chosen:
                return

    def _write(self, one: _SleepLook, *, at_once: bool = False) -> None:
        pk, written = one.sleep.pk, quiet_of(one.sleep)
        if (written.since, written.counts) == (one.quiet.since, one.quiet.counts):
            return
        if at_once or time.monotonic() - self._written_at.get(pk, -WRITE_EVERY_S) >= WRITE_EVERY_S:
            keep_quiet(one.sleep, one.quiet)
            self._written_at[pk] = time.monotonic()


def _note_trouble(one: _SleepLook) -> None:
    """Stores the trouble for pages. Logs it too if the model is awake and had none before."""
    row = one.sleep
    if one.trouble and not row.trouble and row.state == S.AWAKE:
        log.warning("sleep_trouble", model=row.model.slug, environment=row.environment.slug, why=one.trouble)
    if one.trouble is not None:
        note_sleep_trouble(row, one.trouble)


def _count(page: StatsPage | None, model: str, now: float) -> Count | None:
    """What the gateway counted of the model; None where it did not tell, or told what is old."""
    found = None if page is None or isinstance(page, str) else page.get(model)
    if found is None or abs(now - found.read_at.timestamp()) > FRESH_S:
        return None
    return Count(found.epoch, found.user_requests + found.forced + found.asleep + found.questions, found.asleep)


def _least_used(
    release: Release, environment: Environment, may_yield: Sequence[_SleepLook], fleet: Fleet
) -> list[_SleepLook]:
    """Those that are to sleep so that a replica of the release has room; none where it has some, or soon will. `fleet`: the nodes that are
    heard of: what a dead one has room for is no room."""
    others = {one.sleep.pk: one for one in may_yield if one.sleep.model_id != release.model_id}
    yielders = [
        Yielder(
            pk,
            max(one.quiet.since or 0.0, one.sleep.state_since.timestamp() if one.sleep.state_since else 0.0),
            fleet.claims_of(*one.sleeper.key),
        )
        for pk, one in others.items()
    ]
    spots = spots_for(release, environment, fleet)
    return [others[pk] for pk in to_make_room(demand_of(manifest_of(release)["envelope"]), spots, yielders)]
