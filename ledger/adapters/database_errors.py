"""Errors of a moment, of the database or of a machine without room, as the one refusal that every front door renders."""

from __future__ import annotations

from django.db import InterfaceError, OperationalError
from psycopg import Error as PostgresError
from psycopg.errors import DeadlockDetected, IdleInTransactionSessionTimeout, LockNotAvailable, ReadOnlySqlTransaction

from ledger.adapters.shortage import shortage
from ledger.core.errors import Unavailable

_HELD = (LockNotAvailable, DeadlockDetected)  # the first: within `lock_timeout`, sluicegate/settings.py
_AWAY = (OperationalError, InterfaceError, IdleInTransactionSessionTimeout, ReadOnlySqlTransaction)  # a standby


def unavailable(error: Exception) -> Unavailable | None:
    """`locked` or `database_unavailable` for an error of the database, `machine_short` for a shortage; None for any other."""
    if (short := shortage(error)) is not None:
        return short
    told = (error, error.__cause__) if isinstance(error.__cause__, PostgresError) else (error,)
    if any(isinstance(one, _HELD) for one in told):
        said = "Another change holds what this one needs. Nothing was changed; try again soon."
        return Unavailable("locked", said, retry_after_s=2)
    if any(isinstance(one, _AWAY) for one in told):
        said = "The database does not answer. Nothing was changed; try again soon."
        return Unavailable("database_unavailable", said, retry_after_s=2)
    return None
