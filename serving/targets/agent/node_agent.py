"""The node agent: makes this node's servers what the replicas' rows say (docs/decisions/0002).

One loop finds the replicas of this node and gives each a thread with a `ReplicaReconciler`. Nothing is remembered that the
database and the servers' folders do not know, so the agent may be killed at any time: its servers go on, and the next
agent adopts them.
"""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from django.db import IntegrityError, InterfaceError, InternalError, OperationalError, connection

from accounts.core.access import Actor
from ledger.adapters.linux_memory import memory_here
from ledger.core.errors import DomainError, Refused
from registry.queries import manifest_of
from serving.environments.core.lifecycle import ReplicaState
from serving.models import Server
from serving.ports import LaunchError
from serving.targets import actions, queries
from serving.targets.actions.draining import continue_draining
from serving.targets.actions.replicas import continue_placing
from serving.targets.adapters import tensorrt
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.drift import drift_of
from serving.targets.agent.gpu_meter import GpuMeter
from serving.targets.agent.hardware import hardware
from serving.targets.agent.meter import read_servers
from serving.targets.agent.node_launcher import Connect, NodeLauncher
from serving.targets.agent.process_use import use_of
from serving.targets.agent.reconciler import ReplicaReconciler
from serving.targets.agent.timings import AgentTimings
from serving.traffic.queries.stable_files import stable_blobs

log = logging.getLogger(__name__)
LOOK_EVERY_S = 0.5
RENEW_EVERY_S = 60.0
BEAT_EVERY_S = 2.5  # pages call a node silent after `serving.environments.queries.reporting.REPORTS_WITHIN`
#: The last: the database ended a transaction that this process had left idle, as one does that stood still for a while.
#: IntegrityError: somebody else changed the same at this moment, and a constraint refused the sum of both. It is tried again.
_STORE_TROUBLE = (OperationalError, InterfaceError, InternalError, IntegrityError)


class Agent:
    """
    Args:
        node: the name of this machine among the nodes.
        servers: the folder of the launcher's servers; a lock in it keeps a second agent out.
        connect: a client for a running server.
        drift_check_every_s: how often the files of its servers are compared with what was sealed; 0 for never.
        blobs: the node's copies of files; None if the launcher keeps none.
        listed_at: when the server was listed that it acts for; None for the agent of a machine.
    """

    def __init__(
        self,
        *,
        node: str,
        servers: Path,
        launcher: NodeLauncher,
        connect: Connect,
        pace: AgentTimings | None = None,
        drift_check_every_s: float = 0.0,
        gpus: GpuMeter | None = None,
        blobs: BlobCache | None = None,
        listed_at: datetime | None = None,
    ) -> None:
        self._node, self._servers, self._launcher, self._connect = node, servers, launcher, connect
        self._pace, self._drift_check_every_s = pace or AgentTimings(), drift_check_every_s
        self._actor = Actor.system(f"agent:{node}")
        self._gpus, self._blobs, self._listed_at = gpus or GpuMeter(), blobs, listed_at
        self._turned_away = ""  # why it may not act for its node now
        self._threads: dict[str, threading.Thread] = {}
        self._stop = threading.Event()
        self._troubles: list[str] = []
        self._told: tuple[list[dict[str, Any]], dict[str, Any]] | None = None  # runtimes and facts

    def stop(self) -> None:
        """Ends the loops; servers stay."""
        self._stop.set()

    def run(self) -> None:
        """Works until `stop()`. A database that is away is waited for."""
        self._servers.mkdir(parents=True, exist_ok=True)
        with (self._servers / "agent.lock").open("w") as file:
            if not self._take(file.fileno()):
                return
            if self._drift_check_every_s and self._launcher.runs_here:
                threading.Thread(target=self._check_drift_of_all, name="drift", daemon=True).start()
            for read in (self._read_servers, self._read_gpus) if self._launcher.runs_here else ():
                self._begin(read)
            try:
                self._work()
            finally:
                self._stop.set()  # also after an error: another agent may begin
                for thread in self._threads.values():
                    thread.join(timeout=self._pace.probe_timeout + 2)
                connection.close()

    def _work(self) -> None:
        has_swept, beat_at = False, time.monotonic()
        while not self._stop.is_set():
            now = time.monotonic()
            try:
                if now >= beat_at:
                    self._beat()
                    beat_at = now + BEAT_EVERY_S
                if not self._turned_away and not has_swept:
                    self._sweep()
                    has_swept = True
                    if self._blobs is not None:
                        self._begin(self._keep_stable)
                if not self._turned_away:
                    self._dispatch()
            except _STORE_TROUBLE as error:
                _wait_for_store(error)
            except OSError as error:  # such as no free file descriptor; servers go on without the agent
                log.warning("node %s: %s; it is tried again", self._node, error)
            self._stop.wait(LOOK_EVERY_S)

    def _take(self, handle: int) -> bool:
        """Waits until no other agent manages these servers. False when stopped meanwhile."""
        while not self._stop.is_set():
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("another agent manages %s; waiting for it to end", self._servers)
                self._stop.wait(1.0)
            else:
                return True
        return False

    def _beat(self) -> None:
        """Introduces itself; turned away, it does nothing but ask again, and says why once.

        Its servers stay: who may act for the node takes them over, or its owner ends them.
        """
        try:
            self._introduce()
        except Refused as error:
            if error.message != self._turned_away:
                log.error("%s", error)
            self._turned_away = error.message
        else:
            self._turned_away = ""

    def _introduce(self) -> None:
        """Registers the node with its hardware and runtimes; doubles as its heartbeat."""
        try:
            self._told = self._launcher.runtimes(), facts(self._launcher)
        except OSError as error:  # the last facts still hold; a silent node would lose traffic
            log.warning("node %s cannot be looked at (%s); it is tried again", self._node, error)
            if self._told is None:
                raise
        runtimes, told = self._told
        actions.register_node(
            actor=self._actor, name=self._node, runtimes=runtimes, facts=told, listed_at=self._listed_at
        )
        of_machine = (self._measure, self._place) if self._listed_at is None else ()
        for chore in (*of_machine, self._launcher.stop_left, self._drain):
            try:
                chore()
            except (DomainError, OSError, IntegrityError) as error:
                log.warning("node %s: %s; it is tried again", self._node, error)

    def _drain(self) -> None:
        continue_draining(actor=self._actor, node=self._node)

    def _place(self) -> None:
        troubles = continue_placing(actor=self._actor)
        for trouble in troubles if troubles != self._troubles else ():  # each is said once, and not at every heartbeat
            log.warning("node %s: %s; it is tried again", self._node, trouble)
        self._troubles = troubles

    def _measure(self) -> None:
        """Writes down how much memory each living server of this node holds."""
        servers = {one.pid: one.pk for one in queries.current_servers().filter(replica__node=self._node)}
        measured = use_of(servers) if servers else {}
        sizes = {servers[pid]: use.memory_bytes for pid, use in measured.items()}
        actions.record_memory(actor=self._actor, measured=sizes)

    def _sweep(self) -> None:
        """Garbage-collects servers of earlier agents that no replica needs."""
        wanted = queries.current_servers().filter(replica__node=self._node, replica__in=queries.live_replicas())
        for folder in self._launcher.sweep({Path(server.folder) for server in wanted}):
            log.info("removed the leftover server %s", folder.name)

    def _read_servers(self) -> float:
        return read_servers(actor=self._actor, node=self._node, gpu_memory=self._gpus.memory)

    def _read_gpus(self) -> float:
        return self._gpus.read(actor=self._actor, node=self._node)

    def _keep_stable(self) -> float:
        """Keeps the files of stable releases in the cache, so that a sleeping model wakes without a fetch."""
        assert self._blobs is not None
        self._blobs.renew(stable_blobs())
        return RENEW_EVERY_S

    def _begin(self, do: Callable[[], float]) -> None:
        threading.Thread(target=self._again_and_again, args=(do,), name=do.__name__, daemon=True).start()

    def _again_and_again(self, read: Callable[[], float]) -> None:
        """`read` tells in how many seconds it is to be done again."""
        again_in_s = 1.0
        while not self._stop.wait(again_in_s):
            if self._turned_away:
                continue
            try:
                again_in_s = read()
            except _STORE_TROUBLE as error:
                _wait_for_store(error)
            except Exception:
                log.exception("%s failed; it is tried again", read.__name__)
        connection.close()

    def _check_drift_of_all(self) -> None:
        """Compares each server's files with what was sealed, one server after the other, again and again."""
        while not self._stop.wait(self._drift_check_every_s):
            if self._turned_away:
                continue
            try:
                for server in queries.current_servers().filter(
                    replica__node=self._node, replica__state=ReplicaState.READY
                ):
                    self._check_drift(server)
            except _STORE_TROUBLE as error:
                _wait_for_store(error)
            except Exception:
                log.exception("the drift check failed; it is tried again")
        connection.close()

    def _check_drift(self, server: Server) -> None:
        release = server.replica.release
        try:
            repository = Path(server.folder) / "repository"
            drift = drift_of(manifest_of(release), release.model.slug, repository, rest=self._stop.wait)
        except (OSError, LaunchError) as error:
            log.warning("the files of server %s could not be compared (%s); it is tried again", server.pk, error)
            return
        if not self._stop.is_set():
            actions.record_drift(actor=self._actor, server=server, drift=drift)

    def _dispatch(self) -> None:
        self._threads = {name: thread for name, thread in self._threads.items() if thread.is_alive()}
        for pk in queries.live_replicas().filter(node=self._node).values_list("pk", flat=True):
            self._in_thread(f"deployment-{pk}", partial(ReplicaReconciler, pk))

    def _in_thread(self, name: str, make: Callable[..., ReplicaReconciler]) -> None:
        if name not in self._threads:
            self._threads[name] = threading.Thread(target=self._reconcile, args=(name, make), name=name, daemon=True)
            self._threads[name].start()

    def _reconcile(self, name: str, make: Callable[..., ReplicaReconciler]) -> None:
        reconciler = make(actor=self._actor, launcher=self._launcher, connect=self._connect, pace=self._pace)
        try:
            while not self._stop.is_set() and not self._turned_away:
                try:
                    delay = reconciler.step()
                except _STORE_TROUBLE as error:
                    _wait_for_store(error)
                    delay = 1.0
                except Exception:
                    log.exception("%s: a step failed; it is tried again", name)
                    delay = 2.0
                if delay is None:
                    return
                self._stop.wait(delay)
        finally:
            connection.close()


def _wait_for_store(error: Exception) -> None:
    log.warning("the database does not answer (%s); trying again", str(error).strip().partition("\n")[0])
    connection.close()


def facts(launcher: NodeLauncher) -> dict[str, Any]:
    """What is known of the machine that the servers run on. What cannot be known here says so, and why."""
    return {
        **(_machine() if launcher.runs_here else {}),
        "containment": launcher.containment(),
        **launcher.facts(),
        **({"missing": why} if (why := launcher.missing()) else {}),
    }


def _machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_here(),
        "tensorrt": tensorrt.availability(),
        **hardware(),
    }
