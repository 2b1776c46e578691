"""Listens for PostgreSQL NOTIFY, sent when routes or servers change."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import psycopg
from django.db import connection

from serving.environments.actions.locks import CHANGE_CHANNEL

log = logging.getLogger(__name__)

RETRY_S = 0.5


def listen(on_notice: Callable[[], object]) -> threading.Thread:
    """Calls `on_notice` from a daemon thread for every notice, and once connected: earlier notices are lost."""
    thread = threading.Thread(target=_run, args=(on_notice,), name="notices", daemon=True)
    thread.start()
    return thread


def _run(on_notice: Callable[[], object]) -> None:
    while True:
        try:
            with _connect() as session:
                session.execute(f"LISTEN {CHANGE_CHANNEL}")
                on_notice()
                while True:
                    # A time-out here is a chance to find a dead connection: the query fails where silence would not.
                    for _ in session.notifies(timeout=10.0):
                        on_notice()
                    session.execute("SELECT 1")
        except psycopg.Error as error:
            log.debug("notices: %s", error)
        time.sleep(RETRY_S)


def _connect() -> psycopg.Connection[tuple[object, ...]]:
    parameters = connection.get_connection_params()
    for django_only in ("cursor_factory", "context", "server_side_binding", "prepare_threshold", "pool"):
        parameters.pop(django_only, None)
    return psycopg.connect(**parameters, autocommit=True)
