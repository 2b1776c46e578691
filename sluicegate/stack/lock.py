"""The lock of a running stack on its state folder; it frees itself at any end of the stack."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

#: A running stack is reported at once; a stack that has just gone may still have servers that clear up
#: (`serving.targets.agent.server_shim`).
PATIENCE_RUNNING_S, PATIENCE_GONE_S = 0.5, 15.0


class AlreadyRunning(Exception):
    """Another stack runs on the same state folder."""


class StackLock:
    """`<state folder>/stack.lock`, held exclusively (flock) during this object's process."""

    def __init__(self, state_dir: Path) -> None:
        self.file = state_dir / "stack.lock"
        self._handle: int | None = None

    def acquire(self) -> None:
        """Takes the lock and writes this process's pid into it. Raises AlreadyRunning, naming the other's pid."""
        handle = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o600)  # Python's descriptors are not passed on to children
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = int(os.pread(handle, 32, 0) or b"0")
                patience = PATIENCE_RUNNING_S if _is_alive(holder) else PATIENCE_GONE_S
                if time.monotonic() - began > patience:
                    os.close(handle)
                    raise AlreadyRunning(
                        f"Sluicegate already runs on {self.file.parent} (process {holder}). "
                        f"Stop it with `kill {holder}`, or choose another folder with --state."
                    ) from None
                time.sleep(0.05)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._handle = handle

    @property
    def is_locked(self) -> bool:
        """Whether it is this object that holds it."""
        return self._handle is not None

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _is_alive(pid: int) -> bool:
    return pid > 0 and Path(f"/proc/{pid}").exists()
