"""The supervisor: starts processes level by level, brings back what dies, and leaves nothing behind.

A level starts when every process of the level below is ready, and stops when every process of the level above has ended.
Children die with the supervisor even when it is killed outright (see `child`); what *they* leave running becomes the supervisor's own child
(it is a subreaper) and is ended before the lowest level, so that nothing is still using the stores when they stop.

While it runs, the supervisor must be the only one in its process that starts and awaits children.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import Popen

from ledger.adapters.files import write_whole
from ledger.adapters.linux_processes import adopt_orphans, children_of, cpu_s_of
from sluicegate.stack import child
from sluicegate.stack.progress import StartProgress, Work
from sluicegate.stack.tcp_ports import is_bound_by

#: Written to a process's log file at each start; what follows the last one is this start's output.
MARK = "--- sluicegate starts this process ---"
#: The first restart is at once, because a gateway that does not run refuses its callers. The second
#: waits for the first delay, and each delay after it is twice as long.
FIRST_DELAY_S, LONGEST_DELAY_S = 0.2, 10.0
#: A process that ran this long is well: its next restart is at once again.
WELL_AFTER_S = 10.0
#: This many ends before it was first ready mean that starting again will not help.
TRIES_TO_FIRST_READY = 3
LOG_BYTES = 10 * 2**20
POLL_S = 0.05


class StartFailed(Exception):
    """A process did not become ready. The message names it and shows the end of its log."""


@dataclass(frozen=True)
class Process:
    """One process to keep running. `runs_once`: it must end with 0 before the next level begins, and is not kept."""

    name: str
    level: int
    argv: Sequence[str]
    env: Mapping[str, str] | None = None  # all of it; None: the supervisor's own
    is_ready: Callable[[], bool] | None = (
        None  # called in a thread, may block for a second or two; None: ready once it has settled
    )
    ports: Sequence[
        int
    ] = ()  # of 127.0.0.1, that no other program may have; without `is_ready`, it is ready once it listens
    settles_s: float = 0.0  # it must have run for this long: who cannot work ends sooner
    user: str | None = None
    cwd: Path | None = None
    stop_signal: int = signal.SIGTERM
    death_signal: int = signal.SIGKILL  # sent by the kernel when the supervisor is gone
    grace_s: float = 5.0
    ready_s: float = 60.0  # limit for doing nothing before it is ready
    runs_once: bool = False


class Supervisor:
    """Runs `processes` until it is told to stop. `say(name, line)` gets one line for everything worth knowing.

    `before_start` is called with a process just before each of its starts.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        state_dir: Path,
        *,
        say: Callable[[str, str], None],
        before_start: Callable[[Process], None] = lambda process: None,
    ) -> None:
        self.processes = sorted(processes, key=lambda process: process.level)
        self.logs = state_dir / "logs"
        self.pids_file = state_dir / "processes.json"
        self.say = say
        self._before_start = before_start
        self._running: dict[str, Popen[bytes]] = {}
        self._ended: dict[int, asyncio.Event] = {}
        self._began: dict[int, float] = {}
        self._died: dict[str, int] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self, on_ready: Callable[[], Awaitable[None] | None]) -> None:
        """Everything up, `on_ready()`, then kept up until SIGINT, SIGTERM or `stop()`; a second signal kills at once.

        Raises StartFailed, after stopping what had started.
        """
        adopt_orphans()
        self.logs.mkdir(parents=True, exist_ok=True)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop)
        try:
            await self._start_all()
            if not self._stop.is_set():
                result = on_ready()
                if result is not None:
                    await result
            await self._stop.wait()
        finally:
            await self._stop_all()
            self.pids_file.unlink(missing_ok=True)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Ends `run`, in order; called again, at once."""
        if self._stop.is_set():
            self._hurry.set()
            self._kill_all()
        self._stop.set()

    # -- starting and keeping ---------------------------------------------------------------------------------------

    async def _start_all(self) -> None:
        for level in sorted({process.level for process in self.processes}):
            members = [process for process in self.processes if process.level == level]
            for process in members:
                self._watchers.append(asyncio.create_task(self._keep(process), name=process.name))
            waits = [asyncio.create_task(self._await_ready(process)) for process in members]
            stop = asyncio.create_task(self._stop.wait())
            try:
                everyone = asyncio.create_task(_all_of(waits))
                await asyncio.wait({everyone, stop}, return_when=asyncio.FIRST_COMPLETED)
                if self._stop.is_set():
                    everyone.cancel()
                    return
                await everyone
            finally:
                for task in (*waits, stop):
                    task.cancel()

    async def _keep(self, process: Process) -> None:
        delay = 0.0
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                running = self._start(process)
                await self._ended[running.pid].wait()
                code = running.returncode
            except OSError as error:
                self.say(process.name, f"cannot be started: {error}")
                code = 127
            self._died[process.name] = self._died.get(process.name, 0) + 1
            if self._stop.is_set() or process.runs_once:
                return
            if time.monotonic() - started > WELL_AFTER_S:
                delay = 0.0
            when = f"in {delay:.1f} s" if delay else "at once"
            self.say(process.name, f"ended with {_in_words(code)}; starts again {when}")
            try:
                await asyncio.wait_for(self._stop.wait(), delay)
            except TimeoutError:
                delay = min(max(delay * 2, FIRST_DELAY_S), LONGEST_DELAY_S)

    def _start(self, process: Process) -> Popen[bytes]:
        path = self.log_file(process.name)
        if path.exists() and path.stat().st_size > LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        with path.open("ab") as log:
            log.write(f"{MARK}\n".encode())
            log.flush()
            self._before_start(process)
            running = child.start(
                process.argv,
                log=log,
                env=process.env,
                cwd=process.cwd,
                user=process.user,
                death_signal=process.death_signal,
            )
        self._ended[running.pid], self._began[running.pid] = asyncio.Event(), time.monotonic()
        self._running[process.name] = running
        self._write_pids()
        return running

    async def _await_ready(self, process: Process) -> None:
        progress = StartProgress(partial(self._work_of, process))
        while not self._stop.is_set():
            if await self._is_ready(process):
                self._say_ready(process)
                return
            if self._died.get(process.name, 0) >= (
                1 if process.runs_once else TRIES_TO_FIRST_READY
            ) and not await self._is_ready(process):
                raise StartFailed(f"{process.name} ends instead of becoming ready. {self._end_of_log(process.name)}")
            if why := progress.why_hopeless(process.ready_s):
                raise StartFailed(f"{process.name} is not ready after {why}. {self._end_of_log(process.name)}")
            await asyncio.sleep(POLL_S)

    async def _is_ready(self, process: Process) -> bool:
        running = self._running.get(process.name)
        if running is None:
            return False
        if process.runs_once:
            return running.returncode == 0
        if running.returncode is not None or time.monotonic() - self._began[running.pid] < process.settles_s:
            return False
        is_ready = process.is_ready is None or await asyncio.to_thread(process.is_ready)
        return is_ready and await asyncio.to_thread(_has_its_ports, process, running.pid)

    def _work_of(self, process: Process) -> Work:
        """Size of the process's log, and the processor time of it and of the processes of lower levels."""
        log = self.log_file(process.name)
        levels = {one.name: one.level for one in self.processes}
        running = [
            one.pid for name, one in self._running.items() if levels[name] < process.level or name == process.name
        ]
        return Work(log.stat().st_size if log.exists() else 0, cpu_s_of(running))

    def _say_ready(self, process: Process) -> None:
        took_s = time.monotonic() - self._began[self._running[process.name].pid]
        self.say(process.name, f"{'done' if process.runs_once else 'ready'}, {took_s:.1f} s")

    # -- stopping ---------------------------------------------------------------------------------------------------

    async def _stop_all(self) -> None:
        self._stop.set()
        levels = sorted({process.level for process in self.processes})
        for level in reversed(levels):
            if level == levels[0]:
                await self._end_strays()
            await asyncio.gather(*(self._end(process) for process in self.processes if process.level == level))
        await self._end_strays()
        await asyncio.gather(*self._watchers)

    async def _end(self, process: Process) -> None:
        running = self._running.get(process.name)
        if running is None or running.returncode is not None:
            return
        _send(running.pid, signal.SIGKILL if self._hurry.is_set() else process.stop_signal)
        if not await self._ends_within(running.pid, process.grace_s):
            self.say(process.name, f"did not end within {process.grace_s:g} s and is killed")
            _send_session(running.pid, signal.SIGKILL)
            await self._ended[running.pid].wait()

    async def _ends_within(self, pid: int, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._ended[pid].wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _end_strays(self) -> None:
        """Ends the processes that ended children left behind; even in a hurry they get the time to clear shared memory."""
        deadline = time.monotonic() + (2.0 if self._hurry.is_set() else 10.0)
        asked: set[int] = set()
        while strays := self._strays():
            late = time.monotonic() > deadline
            for pid in strays:
                if late or pid not in asked:
                    _send(pid, signal.SIGKILL if late else signal.SIGTERM)
                asked.add(pid)
            await asyncio.sleep(POLL_S)
            self._reap()

    def _strays(self) -> set[int]:
        known = {running.pid for running in self._running.values() if running.returncode is None}
        return children_of(os.getpid()) - known

    def _kill_all(self) -> None:
        for running in self._running.values():
            if running.returncode is None:
                _send_session(running.pid, signal.SIGKILL)

    def _reap(self) -> None:
        by_pid = {running.pid: running for running in self._running.values()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if running := by_pid.get(pid):
                running.returncode = os.waitstatus_to_exitcode(status)
                self._ended[pid].set()

    # -- what is known from outside ---------------------------------------------------------------------------------

    def log_file(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def _end_of_log(self, name: str, chars: int = 1500) -> str:
        path = self.log_file(name)
        said = output_since_start(path)[-chars:].strip() if path.exists() else ""
        return f"{path} ends with:\n{said or '(nothing)'}"

    def _write_pids(self) -> None:
        alive = {name: running.pid for name, running in self._running.items() if running.returncode is None}
        write_whole(self.pids_file, json.dumps(alive, indent=2) + "\n")


def _has_its_ports(process: Process, session: int) -> bool:
    """False while a process without `is_ready` does not listen yet. Raises StartFailed where another program has its port."""
    for port in process.ports:
        is_ours = is_bound_by(session, port)
        if is_ours is False:
            raise StartFailed(
                f"{process.name} cannot have port {port}: another program took it meanwhile, maybe another stack that "
                "started at the same time. Start again: another port is chosen, and said."
            )
        if is_ours is None and process.is_ready is None:
            return False
    return True


async def _all_of(waits: Sequence[Awaitable[None]]) -> None:
    await asyncio.gather(*waits)


def output_since_start(log_file: Path) -> str:
    """The process' output since its last start (at most the log's last 64 KiB)."""
    with log_file.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - 2**16))
        return log.read().decode(errors="replace").rpartition(f"{MARK}\n")[2]


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _send_session(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _in_words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
