"""Processes that are forked from this one, so that they start at once, and die with it whatever happens."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from django.db import connections

from ledger.adapters.linux_processes import die_with_parent


@dataclass
class Child:
    pid: int
    name: str
    status: int | None = None

    @property
    def is_over(self) -> bool:
        self._poll(os.WNOHANG)
        return self.status is not None and not os.WIFSTOPPED(self.status)

    @property
    def was_killed(self) -> bool:
        return self.is_over and os.WIFSIGNALED(self.status or 0) and os.WTERMSIG(self.status or 0) == signal.SIGKILL

    @property
    def is_frozen(self) -> bool:
        """Whether it stopped itself (until it is thawed)."""
        self._poll(os.WNOHANG | os.WUNTRACED)
        return self.status is not None and os.WIFSTOPPED(self.status)

    @property
    def exit_code(self) -> int | None:
        return os.WEXITSTATUS(self.status or 0) if self.is_over and os.WIFEXITED(self.status or 0) else None

    def thaw(self) -> None:
        self.status = None
        os.kill(self.pid, signal.SIGCONT)

    def tell_where_it_is(self) -> None:
        """Has a living process write the stacks of its threads to its log."""
        if not self.is_over and not self.is_frozen:
            os.kill(self.pid, signal.SIGUSR1)

    def kill(self) -> None:
        if not self.is_over:
            os.kill(self.pid, signal.SIGKILL)
            while not self.is_over:
                time.sleep(0.001)

    def _poll(self, options: int) -> None:
        if self.status is None or os.WIFSTOPPED(self.status):
            pid, status = os.waitpid(self.pid, options)
            self.status = status if pid else self.status


def fork(name: str, work: Callable[[], object], log: Path) -> Child:
    """A new process that does `work`; what it says goes to `log`. This process's database connection is closed first:
    two processes cannot share one."""
    connections.close_all()
    tie = die_with_parent(signal.SIGKILL)
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return Child(pid, name)
    try:
        # What was garbage before must not be collected here: asyncio's gRPC waits for a thread, which the parent has, for ever.
        gc.freeze()
        tie()
        out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        work()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
