"""The control plane: follows the database, publishes to gateway streams, and writes down what they acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TypeVar

from django import db

from ledger.queries.clock import DatabaseClock
from serving.environments.core.addresses import TlsFiles
from serving.traffic.control_plane import store
from serving.traffic.control_plane.received import StreamAck
from serving.traffic.control_plane.request_log import LoggedRequest
from serving.traffic.control_plane.server import AdsServer, GatewayIdentity, Wake
from serving.traffic.control_plane.snapshot import Snapshot, compile_table
from serving.traffic.core.routes import RouteProblem, RoutingTable, TableRefused, admit

log = logging.getLogger(__name__)

T = TypeVar("T")
#: Notices can be lost with a connection; the database is read this often in any case.
POLL_S = 2.0
#: Connected gateways are marked as seen this often.
HEARTBEAT_S = 2.0
RETRY_S = 0.5
#: A reading follows when every gateway's stream has looked at what came of the one before, and after this time in any case: replicas that
#: come and go faster than the gateways can be told go together. Measured: docs/fleet.md (`benchmarks.fleet_scale`).
TAKEN_UP_WITHIN_S = 1.0
#: How often that is looked at.
LOOK_S = 0.005
#: Who has had no answer of the database for so long hears of no rollback, and leaves its gateways to another control plane.
BLIND_AFTER_S = 5.0
#: An event tells of refused streams, and of those that follow on one gateway's name not again before this time is over.
TELL_EVERY_S = 600.0
#: Requests that failed or were slow, of each release and kind, that are written at a time: they are examples. The first one is
#: written at once, since a rollback's clock starts with it; the next ones so many seconds later.
MOST_EXAMPLES, EXAMPLES_EVERY_S = 10, 1.0


class ControlPlane:
    """Implements `serving.traffic.control_plane.server.Plane`. Everything but the database threads runs on one event loop."""

    def __init__(self, *, poll_s: float = POLL_S) -> None:
        self.notice = asyncio.Event()
        self._poll_s = poll_s
        self._heard_at = time.monotonic()  # from the database, when anything was read or written
        self._loaded: store.Loaded | None = None  # the last reading: what has not changed since is not made again
        self._snapshots: dict[str, Snapshot] = {}
        self._read_at: dict[str, datetime] = {}  # up to when they say all that the database says
        self._gateways: dict[str, GatewayIdentity] = {}
        self._streams: defaultdict[str, set[tuple[GatewayIdentity, Wake]]] = defaultdict(set)
        self._acks: dict[tuple[int, int], store.AckRow] = {}
        self._has_acks, self._has_examples = asyncio.Event(), asyncio.Event()
        self._said: dict[str, str] = {}
        self._refused_at: dict[int, float] = {}
        self._refusals: list[tuple[int, str, str]] = []
        self._examples: dict[GatewayIdentity, dict[tuple[str, str], list[LoggedRequest]]] = {}
        self._clock = DatabaseClock()
        # Reading and writing have a thread each: a slow read must not delay an acknowledgement.
        self._reader = ThreadPoolExecutor(1, "routes")
        self._writer = ThreadPoolExecutor(1, "acks")

    async def run(
        self, address: str, tls: TlsFiles | None = None, *, on_open: Callable[[int], None] = lambda port: None
    ) -> None:
        """Serves until cancelled. The port is open while the database can be read, and not before its first whole reading."""
        while not await self._refresh():
            await asyncio.sleep(RETRY_S)
        gc.collect()
        gc.freeze()  # a thousand models' messages stay: to look through them for garbage again and again takes longer than to read
        server = AdsServer(self)
        on_open(await server.start(address, tls))
        try:
            async with asyncio.TaskGroup() as tasks:
                for job in (self._follow, self._write_acks, self._heartbeat, self._tell_examples):
                    tasks.create_task(job())
                tasks.create_task(self._serve_while_it_sees(server, address, tls))
        finally:
            await server.stop()
            self._reader.shutdown(wait=False)
            self._writer.shutdown(wait=False)

    async def _serve_while_it_sees(self, server: AdsServer, address: str, tls: TlsFiles | None) -> None:
        """Shuts the port once it is blind, so that gateways go to a control plane that is not, and stay as they are where there is none.
        Raises RuntimeError when another has taken the port meanwhile.
        """
        is_blind = False
        while True:
            await asyncio.sleep(RETRY_S)
            was_blind, is_blind = is_blind, time.monotonic() - self._heard_at > BLIND_AFTER_S
            if server.is_open and is_blind and was_blind:  # once says nothing: this process itself may have stood still
                log.warning("the database has not answered for %g s: gateways are left to others", BLIND_AFTER_S)
                await server.stop()
            elif not (server.is_open or is_blind) and await self._refresh():  # what is published may be old by now
                log.info("the database answers: gateways are let in again")
                await server.start(address, tls)

    # -- Plane ------------------------------------------------------------------------------------------------------

    def gateway(self, name: str) -> GatewayIdentity | None:
        return self._gateways.get(name)

    def snapshot(self, environment: str) -> Snapshot | None:
        return self._snapshots.get(environment)

    def read_at(self, environment: str) -> datetime | None:
        return self._read_at.get(environment)

    def subscribe(self, gateway: GatewayIdentity, wake: Wake) -> None:
        self._streams[gateway.environment].add((gateway, wake))

    def unsubscribe(self, gateway: GatewayIdentity, wake: Wake) -> None:
        self._streams[gateway.environment].discard((gateway, wake))

    def record_acks(self, gateway: GatewayIdentity, acks: list[StreamAck]) -> None:
        at = self._clock.now()
        for one in acks:
            self._acks[gateway.id, one.route_id] = store.AckRow(
                gateway.id, one.route_id, one.generation, one.error, at, one.follows
            )
        self._has_acks.set()

    def record_refusal(self, gateway: GatewayIdentity, peer: str, reason: str) -> None:
        """Told in the log of events at most once in `TELL_EVERY_S` for each gateway: who was refused comes again each second."""
        now = time.monotonic()
        if now - self._refused_at.get(gateway.id, -math.inf) < TELL_EVERY_S:
            return
        self._refused_at[gateway.id] = now
        self._refusals.append((gateway.id, peer, reason))
        log.warning("gateway %s: a stream from %s is refused: %s", gateway.name, peer, reason)

    def record_requests(self, gateway: GatewayIdentity, requests: Iterable[LoggedRequest]) -> None:
        """Keeps the first `MOST_EXAMPLES` of each kind until they are written: a gateway may tell thousands a second."""
        snapshot = self._snapshots.get(gateway.environment)
        watched = snapshot.table.watched if snapshot is not None else frozenset()
        kept = self._examples.setdefault(gateway, {})
        for one in requests:
            if one.digest in watched and len(found := kept.setdefault((one.digest, one.kind), [])) < MOST_EXAMPLES:
                found.append(one)
                self._has_examples.set()

    # -- the database -----------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):  # `wait_for` loses a cancellation that comes with a notice
                    await self.notice.wait()
            self.notice.clear()
            if await self._refresh():
                await self._until_taken_up()
            else:
                await asyncio.sleep(RETRY_S)

    async def _until_taken_up(self) -> None:
        """Until every stream has looked at what was published last, but those whose gateways take nothing at present."""
        until = time.monotonic() + TAKEN_UP_WITHIN_S
        while (now := time.monotonic()) < until and any(
            wake.is_behind(now) for streams in self._streams.values() for _, wake in streams
        ):
            await asyncio.sleep(LOOK_S)

    async def _refresh(self) -> bool:
        """Reads, checks and publishes. False when the routes cannot be read: what is published stays."""
        try:
            loaded = await self._in_thread(self._reader, self._load)
        except Exception as error:  # a broken row must not stop the control plane: gateways keep the last routes
            self._say("database", f"the routes cannot be read, gateways keep what they have: {str(error).strip()}")
            return False
        self._say("database", "")
        self._publish_all(loaded)
        return True

    def _publish_all(self, loaded: store.Loaded) -> None:
        self._gateways = loaded.gateways
        for environment, table in loaded.tables.items():
            try:
                self._publish(environment, table, loaded)
            except Exception as error:  # one environment's table must not keep the others' from being published
                self._say(
                    environment, f"{environment}: gateways keep what they have, its routes make no table: {error}"
                )

    def _load(self) -> store.Loaded:
        if self._loaded is None:
            self._clock.sync()  # gateways' words are dated by the database's time: engines on other hosts count from it
        self._loaded = store.load(self._loaded)
        return self._loaded

    def _publish(self, environment: str, table: RoutingTable, loaded: store.Loaded) -> None:
        last, unmade = self._snapshots.get(environment), loaded.problems.get(environment, ())
        try:
            admission = admit(table, last.table if last else None, loaded.known[environment])
        except TableRefused as refusal:
            self._say(environment, "; ".join([*(one.message for one in unmade), str(refusal)]))
            return
        problems = (*unmade, *admission.problems)
        self._say(environment, "; ".join(problem.message for problem in problems))
        self._refuse_withheld(environment, [problem for problem in problems if problem.is_withheld])
        if last is None or admission.table != last.table:
            self._snapshots[environment] = compile_table(admission.table, last)
            for _, wake in self._streams[environment]:
                wake.publish()
        if environment in loaded.read_at:
            self._read_at[environment] = loaded.read_at[environment]

    def _refuse_withheld(self, environment: str, problems: list[RouteProblem]) -> None:
        acks = [StreamAck(problem.route_id, problem.generation, problem.message) for problem in problems]
        for gateway in {gateway for gateway, _ in self._streams[environment]} if acks else ():
            self.record_acks(gateway, acks)

    async def _write_acks(self) -> None:
        while True:
            await self._has_acks.wait()
            self._has_acks.clear()
            try:
                await self._flush_acks()
            except db.Error as error:
                log.warning("acknowledgements are not written yet: %s", str(error).strip())
                await asyncio.sleep(RETRY_S)

    async def _flush_acks(self) -> None:
        """Writes what gateways said. Raises db.Error, and keeps it."""
        batch, self._acks = self._acks, {}
        try:
            await self._in_thread(self._writer, store.write_acks, list(batch.values()))
        except db.Error:
            self._acks = {**batch, **self._acks}
            self._has_acks.set()
            raise

    async def _heartbeat(self) -> None:
        while True:
            seen = {gateway.id for streams in self._streams.values() for gateway, _ in streams}
            with contextlib.suppress(db.Error):
                await self._in_thread(self._writer, self._clock.sync)  # and nothing else may ask for long
                if seen:
                    await self._in_thread(self._writer, store.write_seen, seen, self._clock.now())
                    follows = self._follows()
                    await self._flush_acks()  # first: which models they do not speak for
                    await self._in_thread(self._writer, store.write_follows, follows)
                await self._write_refusals()
            await asyncio.sleep(HEARTBEAT_S)

    async def _tell_examples(self) -> None:
        while True:
            await self._has_examples.wait()
            self._has_examples.clear()
            with contextlib.suppress(db.Error):
                await self._write_examples()
            await asyncio.sleep(EXAMPLES_EVERY_S)

    def _follows(self) -> dict[int, datetime]:
        """Up to when each gateway that is connected here has what the database said."""
        every = (one for streams in self._streams.values() for one in streams)
        return {gateway.id: wake.follows_at for gateway, wake in every if wake.follows_at is not None}

    async def _write_refusals(self) -> None:
        """Each once: what an error keeps from the database is written with the next heartbeat."""
        while self._refusals:
            await self._in_thread(self._writer, store.write_refusal, *self._refusals[0])
            del self._refusals[0]

    async def _write_examples(self) -> None:
        """At most once: what the database does not take is lost, like what a gateway could not tell."""
        kept, self._examples = self._examples, {}
        for gateway, by_kind in kept.items():
            found = [one for examples in by_kind.values() for one in examples]
            if found:
                await self._in_thread(self._writer, store.write_examples, gateway, found)

    async def _in_thread(self, pool: ThreadPoolExecutor, call: Callable[..., T], *args: object) -> T:
        def guarded() -> T:
            db.connection.close_at = (
                None  # kept: to connect takes longer than to read; a broken one is found and replaced
            )
            db.close_old_connections()
            try:
                return call(*args)
            except db.Error:
                db.connection.close()
                raise

        found = await asyncio.get_running_loop().run_in_executor(pool, guarded)
        self._heard_at = time.monotonic()
        return found

    def _say(self, about: str, message: str) -> None:
        """Logs a message once, and again when it changed or came back."""
        if message and self._said.get(about) != message:
            log.warning("%s", message)
        if not message and self._said.get(about):
            log.info("%s: well again", about)
        self._said[about] = message
