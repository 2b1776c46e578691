"""The faults of `benchmarks.fault_matrix`, and the stack with users in which they happen."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import redis

from benchmarks.after_kill import MOST_S, until
from benchmarks.fault_callers import Pages, Users
from benchmarks.rollback_time import kill_server
from ledger.adapters.linux_processes import children_of
from sluicegate.stack import Stack
from tests.flows.tiny import MODEL, Shop, model_document

IDLE, PUSHED = "idle", "pushed"
STABLE, CANDIDATE = f"{MODEL}/r1", f"{MODEL}/r2"
RATES_PER_S = {MODEL: 15.0, IDLE: 8.0}
#: Seconds without a failure before each fault, and the longest wait for them.
_CALM_S, _CALM_WITHIN_S = 4.0, 180.0
_STAYS: dict[str, Any] = {"min_s": 7200, "min_samples": 10**6, "deadline_s": 20_000}
POLICY = {"preset": "standard", "steps": [{"weight_pct": 50, **_STAYS}], "bake": _STAYS}
EIGHT = ("web", "worker", "engine", "agent", "prober", "control_plane", "scheduler", "relay")


class World:
    """A stack with its users. `killed_at`: when the last signal of a kill was sent (monotonic)."""

    def __init__(self, stack: Stack, folder: Path, until_the_end: ExitStack) -> None:
        self.stack, self.folder = stack, folder
        self.shop = until_the_end.enter_context(Shop(stack, folder, step_s=1, has_model=False))
        self.killed_at: float | None = None
        document = model_document(1)
        for slug in (MODEL, IDLE):
            self.shop.offer({**document, "slug": slug, "gate_policy": {"gates": ["contract"]}})
        self.shop.offer({**document, "slug": PUSHED})
        self.users = {model: Users(stack, model, rate) for model, rate in RATES_PER_S.items()}
        for model, users in self.users.items():
            first = self.shop.start(self.shop.prove(f"{model}-first", model=model))
            self.shop.until_acknowledged(first)
            until_the_end.enter_context(users)
            self.shop.until(first, "promoted")
        assert self.shop.prove("second") == CANDIDATE
        self.rollout = self.shop.start(CANDIDATE, policy=POLICY)
        self.pages = until_the_end.enter_context(Pages(stack, MODEL))

    def rows(self, query: str, *values: object) -> list[Any]:
        """The rows of a query, also while the database starts. Raises psycopg.OperationalError after a minute."""
        deadline = time.monotonic() + 60
        while True:
            try:
                with psycopg.connect(self.stack.database_url, autocommit=True) as session:
                    return session.execute(query, values).fetchall()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def servers(self) -> dict[str, set[int]]:
        """The pids of the serving processes by release, such as `double/r1`."""
        found: dict[str, set[int]] = {}
        for slug, number, pid in self.rows(
            "SELECT m.slug, r.number, s.pid FROM serving_server s "
            "JOIN serving_deployment d ON d.id = s.deployment_id JOIN registry_release r ON r.id = d.release_id "
            "JOIN registry_servedmodel m ON m.id = r.model_id "
            "WHERE s.ended_at IS NULL AND s.is_serving AND m.slug = ANY(%s)",
            list(self.users),
        ):
            found.setdefault(f"{slug}/r{number}", set()).add(pid)
        return found

    def calm(self) -> None:
        """Waits until a candidate has half of the traffic and nothing failed lately. Raises TimeoutError."""
        seen = self.shop.view(self.rollout)
        if seen["state"] != "shifting":
            if not seen["is_final"]:
                self.shop.manager.act(self.rollout, "abort", "The next fault begins with a rollout of its own.")
                until(lambda: self.shop.view(self.rollout)["is_final"])
            until(lambda: CANDIDATE not in self.servers())
            self.rollout = self.shop.start(CANDIDATE, policy=POLICY, again=True)
            self.shop.until(self.rollout, "shifting")
        self.shop.until_acknowledged(self.rollout)
        began, why = time.monotonic(), "nothing was asked"
        while why:
            if time.monotonic() - began > _CALM_WITHIN_S:
                raise TimeoutError(f"{why} for {_CALM_WITHIN_S:g} s before the fault")
            time.sleep(_CALM_S)
            why = self._unrest(time.monotonic() - _CALM_S)

    def _unrest(self, since: float) -> str:
        callers: dict[str, Users | Pages] = {**self.users, "page": self.pages}
        failing = [name for name, one in callers.items() if any(call.error for call in one.since(since))]
        silent = [name for name, one in callers.items() if not one.since(since)]
        absent = {STABLE, CANDIDATE, f"{IDLE}/r1"} - set(self.servers())
        return "; ".join(
            f"{what} {', '.join(sorted(names))}"
            for what, names in (
                ("failures of", failing),
                ("no answer of", silent),
                ("no server of", absent),
            )
            if names
        )

    # -- steps of faults

    def kill(self, pids: Collection[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.killed_at = time.monotonic()

    def pid(self, name: str) -> int:
        """A process of the stack; of the two engines the one that leads."""
        return self.stack.leading_engine() if name == "engine" else self.stack.pid_of(name)

    def pids(self, name: str) -> set[int]:
        """The same; of PostgreSQL all its processes."""
        pid = self.pid(name)
        return {pid} | (children_of(pid) if name == "postgres" else set())


#: A generator that begins a fault; the code after its `yield` ends the fault.
Begins = Callable[[World], Iterator[None]]


def kills(*names: str, frozen: str = "") -> Begins:
    def begin(world: World) -> Iterator[None]:
        pids = [world.pid(name) for name in names]
        with contextmanager(freezes(frozen))(world) if frozen else contextlib.nullcontext():
            world.kill(pids)
            yield

    return begin


def freezes(name: str) -> Begins:
    def begin(world: World) -> Iterator[None]:
        pids = world.pids(name)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    return begin


def kills_server(release: str) -> Begins:
    def begin(world: World) -> Iterator[None]:
        kill_server(world.stack, release)
        world.killed_at = time.monotonic()
        yield

    return begin


def signals(name: str, number: signal.Signals) -> Begins:
    def begin(world: World) -> Iterator[None]:
        os.kill(world.stack.pid_of(name), number)
        world.killed_at = time.monotonic()
        yield

    return begin


def flush(world: World) -> Iterator[None]:
    url = Path(world.stack.env["REDIS_URL_FILE"]).read_text().strip()
    with redis.Redis.from_url(url) as valkey:
        valkey.flushall()
    yield


def read_only(folder: str) -> Begins:
    def begin(world: World) -> Iterator[None]:
        top = world.stack.state_dir / folder
        modes = {one: one.stat().st_mode for one in (top, *top.rglob("*")) if one.is_dir()}
        for one, mode in modes.items():
            one.chmod(mode & 0o555)
        try:
            yield
        finally:
            for one, mode in modes.items():
                with contextlib.suppress(FileNotFoundError):
                    one.chmod(mode)

    return begin


def limits(name: str, of: int, spare: int) -> Begins:
    """Limits a process to its present open files or address space, plus `spare` files or KiB."""

    def begin(world: World) -> Iterator[None]:
        pid = world.pid(name)
        if of == resource.RLIMIT_NOFILE:
            taken = {int(one.name) for one in Path(f"/proc/{pid}/fd").iterdir()}
            most = min(set(range(len(taken) + 1)) - taken) + spare  # a new file gets the first free number
        else:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + spare * 1024
        before = resource.prlimit(pid, of)
        resource.prlimit(pid, of, (most, before[1]))
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, of, before)

    return begin


@dataclass(frozen=True)
class Fault:
    """`rollout`: the state after the fault. `replaces`: releases whose servers may change. `page_s`: most
    seconds without a page from the fault's end on. `limited`: the process whose limit must leave a trace."""

    name: str
    begins: Begins
    for_s: float = 0.0
    rollout: str = "shifting"
    replaces: tuple[str, ...] = ()
    page_s: float = 10.0
    limited: str = ""
    known: str = ""
    leads: bool = False  # the time until another engine leads is taken


files, memory = resource.RLIMIT_NOFILE, resource.RLIMIT_AS
FAULTS = (
    Fault("kill -9 web", kills("web"), page_s=MOST_S["page"]),
    Fault("kill -9 engine and scheduler", kills("engine", "scheduler"), leads=True),
    Fault("kill -9 engine", kills("engine"), leads=True),
    Fault("kill -9 Envoy", kills("envoy"), known="the only gateway"),
    Fault("kill -9 Envoy, control plane frozen 10 s", kills("envoy", frozen="control_plane"), 10,
          known="the only gateway"),
    Fault("kill -9 node agent", kills("agent")),
    Fault("kill -9 control plane and relay", kills("control_plane", "relay")),
    Fault("kill -9 Valkey", kills("valkey")),
    Fault("kill -9 worker", kills("worker")),
    Fault("kill -9 postmaster", kills("postgres")),
    Fault("kill -9 eight processes at once", kills(*EIGHT), page_s=MOST_S["page"], leads=True),
    Fault("SIGSTOP Envoy 5 s", freezes("envoy"), 5, known="record 0049"),
    Fault("SIGSTOP PostgreSQL 20 s", freezes("postgres"), 20),
    Fault("SIGSTOP engine 20 s", freezes("engine"), 20),
    Fault("SIGSTOP node agent 45 s", freezes("agent"), 45),
    Fault("SIGSTOP Valkey 20 s", freezes("valkey"), 20),
    Fault("PostgreSQL fast shutdown", signals("postgres", signal.SIGINT)),
    Fault("kill -9 candidate's only server", kills_server(CANDIDATE), rollout="rolled_back", replaces=(CANDIDATE,)),
    Fault("kill -9 stable's only server", kills_server(STABLE), replaces=(STABLE,)),
    Fault("FLUSHALL", flush),
    Fault("blobs read-only 15 s", read_only("blobs"), 15),
    Fault("servers read-only 15 s", read_only("servers"), 15),
    Fault("web: 5 files more, 10 s", limits("web", files, 5), 10, limited="web"),
    Fault("web: no file more, 10 s", limits("web", files, 0), 10, limited="web"),
    Fault("node agent: no file more, 15 s", limits("agent", files, 0), 15, limited="agent"),
    Fault("engine: no file more, 15 s", limits("engine", files, 0), 15, limited="engine"),
    Fault("control plane: no file more, 15 s", limits("control_plane", files, 0), 15, limited="control_plane"),
    Fault("Envoy: no file more, 15 s", limits("envoy", files, 0), 15, limited="envoy"),
    Fault("worker: no file more, 15 s", limits("worker", files, 0), 15, limited="worker"),
    Fault("web: no more memory, 12 s", limits("web", memory, 0), 12, limited="web"),
)  # fmt: skip
