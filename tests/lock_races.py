"""Two verbs of which the second begins before the first is committed: what waits for what, and what comes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from django.db import OperationalError, connection, connections, transaction

from ledger.core.errors import DomainError
from tests.gateway_rig import wait_until

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
