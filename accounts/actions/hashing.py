"""Passwords are hashed by few at once: each costs a third of a second of processor time and 100 MiB."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore

from ledger.core.errors import Unavailable

#: More than this many at once in a process wait, then are sent away: 400 MiB by Argon2 as Django sets it.
CHECKS_AT_ONCE = 4
_CHECKS = BoundedSemaphore(CHECKS_AT_ONCE)
_LONGEST_WAIT_S = 5.0


@contextmanager
def one_of_few() -> Iterator[None]:
    """Room for one hash. Raises Unavailable("busy") with `retry_after_s` where there is none for five seconds."""
    if not _CHECKS.acquire(timeout=_LONGEST_WAIT_S):
        raise Unavailable(
            "busy",
            "Too many people sign in at this moment. Try again in a few seconds.",
            retry_after_s=math.ceil(_LONGEST_WAIT_S),
        )
    try:
        yield
    finally:
        _CHECKS.release()
