"""What live pages cost: the notice in `append_event`, and each look at the log, on a PostgreSQL of its own.

Run `python -m benchmarks.event_stream [--events N]`. Each event is in a transaction of its own; with a notice or without, in
turns, so that both meet the same load. Then the same while somebody listens. Then one look of the watcher with nothing new: there
is one in a second and process while anybody has a live page open.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.stores import database


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=500)
    arguments = parser.parse_args()
    with database(SLUICEGATE_LOG_LEVEL="ERROR"):
        measure(arguments.events)


def measure(events: int) -> None:
    """Prints one line for each figure."""
    import psycopg
    from django.db import connection, transaction

    from accounts.core.access import Actor
    from ledger.actions import append_event
    from ledger.actions.events import EVENT_CHANNEL
    from sluicegate.live.watcher import Watcher

    engine = Actor.system("engine")

    def append() -> None:
        with transaction.atomic():
            append_event(verb="rollout.held", subject_type="rollout", subject_id=1, actor=engine, facts={"model": "m"})

    def append_silently() -> None:
        """The same, with the notice taken out of the statement."""
        with connection.execute_wrapper(_without_notice):
            append()

    for call in (append, append_silently):
        call()
    pairs = [(_time(append_silently), _time(append)) for _ in range(events)]
    _say("an event without a notice", [one for one, _ in pairs])
    _say("an event, nobody listens", [one for _, one in pairs])
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as listener:
        listener.execute(f"LISTEN {EVENT_CHANNEL}")
        _say("an event, one process listens", [_time(append) for _ in range(events)])
    watcher = Watcher(lambda: (), lambda news: None)
    watcher.stop()
    watcher.join(10)
    _say("one look at the log, nothing new", [_time(watcher._look) for _ in range(200)])


def _without_notice(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    if "pg_notify" in sql:
        return execute("SELECT pg_advisory_xact_lock(%s)", params[:1], many, context)
    return execute(sql, params, many, context)


def _time(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _say(what: str, took: list[float]) -> None:
    p95 = sorted(took)[int(len(took) * 0.95)]
    sys.stdout.write(f"{what}: median {statistics.median(took) * 1e3:.2f} ms, p95 {p95 * 1e3:.2f} ms\n")


if __name__ == "__main__":
    main()
