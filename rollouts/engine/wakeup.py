"""What lets the engine's next look come early."""

from __future__ import annotations

import threading
from contextlib import suppress


class Wakeup:
    """A call that ends another thread's wait. One that comes before the wait ends it at once; several are one.

    A bare lock, held until a call. Not a `SimpleQueue`, though that too may be called from a signal handler:
    CPython 3.11's `get(timeout)` waits for ever when a busy machine lets its time run out just before it begins to wait
    (a million calls with a microsecond each show it). Not an `Event`: its `set` in a signal handler may wait for itself.
    """

    def __init__(self) -> None:
        self._nobody_called = threading.Lock()
        self._nobody_called.acquire()

    def call(self) -> None:
        """May be called by any thread or signal handler."""
        with suppress(RuntimeError):  # called already
            self._nobody_called.release()

    def wait(self, timeout_s: float) -> bool:
        """Whether there was a call within `timeout_s` seconds. Uses up the call."""
        return self._nobody_called.acquire(timeout=max(0.0, timeout_s))

    def forget(self) -> None:
        """Uses up a call without waiting for one."""
        self._nobody_called.acquire(blocking=False)
