"""Two verbs of which the second begins before the first is committed: what waits for what, and what comes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.utils.module_loading import import_string

from ledger.core.errors import DomainError
from tests.support.rigs.gateway_rig import wait_until

#: Unlike `pg_stat_activity` it is read anew within a transaction.
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


def behind(first: Callable[[], object], second: Callable[[], object]) -> str:
    """What came of the second, which began when the first was done and before that was committed: `done`, or the code of the refusal."""
    found: list[str] = []
    thread = beside(second, found)
    with transaction.atomic():
        first()
        thread.start()
        wait_until(lambda: found or waiting(), "the second, or its waiting for a lock", timeout_s=60)
    thread.join(timeout=60)
    return found[0]


def beside(do: Callable[[], object], found: list[str]) -> threading.Thread:
    """A thread, not begun, that puts into `found` what came of it."""

    def run() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '60s'")  # the product's 4 s are of machines that do not stand still
            do()
            found.append("done")
        except DomainError as error:
            found.append(error.code)
        except OperationalError as error:
            found.append(str(error))
        finally:
            connections["default"].close()

    return threading.Thread(target=run)


def waiting() -> int:
    """How many wait for a lock."""
    with connection.cursor() as cursor:
        cursor.execute(_WAITING)
        return int(cursor.fetchone()[0])


class Meeting:
    """Somebody else who begins to write of what a function is called with the second time: the first has told of something by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: str, writes: Callable[[Any], object]) -> None:
        self.found: list[str] = []
        self._calls, self._real, self._writes = 0, import_string(where), writes
        self._other = beside(lambda: None, [])
        monkeypatch.setattr(where, self._meet)

    def _meet(self, *args: Any, **said: Any) -> Any:
        self._calls += 1
        if self._calls == 2:
            self._other = beside(lambda: self._writes({**dict(enumerate(args)), **said}), self.found)
            self._other.start()
            wait_until(lambda: self.found or waiting(), "the other, or its waiting for a lock", timeout_s=60)
        return self._real(*args, **said)

    def outcome(self) -> list[str]:
        self._other.join(timeout=60)
        return self.found
