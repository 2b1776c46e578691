"""Forked children with limits: at most so many at once, each ended when it takes too long."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

MEMORY_BYTES = 6 << 30
#: A child may wait this many times longer than it may compute: other work on the machine must not look like an endless loop.
WALL_PER_CPU = 12
#: The exit status of a child whose work raised.
BROKEN = 70


class Ended(NamedTuple):
    """`code` is the exit status, or minus the signal; `told` is what the child wrote before it ended."""

    code: int
    told: str
    is_late: bool


class Job(NamedTuple):
    """`work` returns the exit status and a word for the parent; it may compute for `cpu_s` seconds."""

    name: int
    work: Callable[[], tuple[int, str]]
    cpu_s: float


def run(jobs: Iterator[Job], most: int) -> Iterator[tuple[int, Ended]]:
    """Each job in a forked child of its own, `most` at once; (name, how it ended) in the order of ending."""
    running: dict[int, tuple[int, int, float]] = {}
    try:
        more = True
        while more or running:
            while more and len(running) < most:
                job = next(jobs, None)
                if job is None:
                    more = False
                    break
                with asked_to_end_later():
                    pid, pipe = _start(job)
                    running[pid] = (job.name, pipe, time.monotonic() + job.cpu_s * WALL_PER_CPU)
            for pid in list(running):
                name, pipe, until = running[pid]
                is_late = time.monotonic() > until
                if is_late:
                    _kill(pid)
                ended, status = os.waitpid(pid, 0 if is_late else os.WNOHANG)
                if ended:
                    del running[pid]
                    yield name, _ended(pipe, status, is_late)
            time.sleep(0.01)
    finally:
        for pid in running:
            _kill(pid)
            os.waitpid(pid, 0)


@contextlib.contextmanager
def asked_to_end_later() -> Iterator[None]:
    """A SIGTERM of this block is met after it: what a handler raises inside `os.fork` is lost, and a child not yet noted is left."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(job: Job) -> tuple[int, int]:
    ours, theirs = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(theirs)
        return pid, ours
    code, told = BROKEN, ""
    try:
        os.close(ours)
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        cpu_s = int(job.cpu_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (_cpu_so_far() + cpu_s, _cpu_so_far() + cpu_s + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        code, told = job.work()
    except BaseException:
        told = traceback.format_exc()
    finally:
        with contextlib.suppress(OSError):
            os.write(theirs, told.encode()[-4000:])
        os._exit(code)


def _cpu_so_far() -> int:
    return int(time.process_time())


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _ended(pipe: int, status: int, is_late: bool) -> Ended:
    os.set_blocking(pipe, False)
    try:
        told = os.read(pipe, 65536).decode(errors="replace")
    except BlockingIOError:  # a process of the child's own still holds the other end
        told = ""
    os.close(pipe)
    code = os.waitstatus_to_exitcode(status)
    return Ended(code, told, is_late or code in {-signal.SIGXCPU, -signal.SIGKILL})


def silence() -> None:
    """Nothing that this process or its children print is seen."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
