"""What every page takes at size, through every layer but HTTP itself.

    python -m benchmarks.pages [--releases 100000] [--rollouts 1000] [--events 100000] [--requests 40]

A durable PostgreSQL of its own with one model of so many releases and rollouts, and 200 other models that are served; each page and
fragment that answers to GET is asked so often, by an administrator, who sees everything. `queries` and `gz` (bytes, compressed) are of
the last answer. The bar is a p95 of 50 ms, 12 queries, and 8 KiB for a fragment.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.stores import database

BAR_MS, MOST_QUERIES, MOST_FRAGMENT_BYTES = 50.0, 12, 8 * 1024
#: Rows of every other list.
ROWS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", type=int, default=100_000)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=40)
    said = parser.parse_args()
    with database(is_durable=True):
        from django.conf import settings
        from django.core.management import call_command

        settings.ALLOWED_HOSTS = ["testserver"]
        settings.LOGGING_CONFIG = None
        call_command("collectstatic", interactive=False, verbosity=0)
        print("page                          p50 ms  p95 ms  queries      gz")
        missed = 0
        for name, times, queries, size in _asked(said):
            p95 = statistics.quantiles(times, n=20)[-1]
            over = [
                word
                for word, is_over in (
                    ("slow", p95 > BAR_MS),
                    ("queries", queries > MOST_QUERIES),
                    ("large", name.endswith("_live") and size > MOST_FRAGMENT_BYTES),
                )
                if is_over
            ]
            missed += bool(over)
            print(
                f"{name:28} {statistics.median(times):7.1f} {p95:7.1f} {queries:8} {size:7}  {' '.join(over)}",
                flush=True,
            )
        print(f"{missed} pages over a bar" if missed else "every page within its bars")


def _asked(said: argparse.Namespace) -> Iterator[tuple[str, list[float], int, int]]:
    """(name, milliseconds of each request, queries, compressed bytes) of every page."""
    from django.db import connection, transaction
    from django.test import Client

    from tests.page_world import addresses, page_world

    with transaction.atomic():
        world = page_world(ROWS)
        _grow(world, said)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    client = Client(raise_request_exception=False)
    client.force_login(world.admin)
    for name, address in addresses(world):
        times: list[float] = []
        asked: list[str] = []

        def counted(execute: Any, sql: str, *rest: Any, asked: list[str] = asked) -> Any:
            asked.append(sql)
            return execute(sql, *rest)

        client.get(address)  # fills caches
        with connection.execute_wrapper(counted):
            answer: Any = client.get(address)
        if answer.status_code != 200:
            continue
        for _ in range(said.requests):
            began = time.perf_counter()
            answer = client.get(address)
            body = b"".join(answer.streaming_content) if answer.streaming else answer.content
            times.append(1000 * (time.perf_counter() - began))
        yield name, times, len(asked), len(gzip.compress(body))


def _grow(world: Any, said: argparse.Namespace) -> None:
    """The one model's releases, rollouts and events, written without their stories."""
    from django.db import connection

    from ledger.actions import append_event
    from rollouts.models import Rollout
    from tests.page_world import SYSTEM, copies

    last = 10_000 + said.releases
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO registry_release (id, model_id, state, spec, expected_files, manifest, is_code_bearing, version, "
            "created_at, number, digest, sealed_at) SELECT md5('many ' || n)::uuid, %s, 'sealed', '{}', '[]', %s, false, 2, now(), "
            "10000 + n, 'sha256:' || encode(sha256(convert_to('many ' || n, 'UTF8')), 'hex'), now() FROM generate_series(1, %s) n",
            [world.model.pk, world.release.manifest, said.releases],
        )
        cursor.execute("UPDATE registry_servedmodel SET last_number = %s WHERE id = %s", [last, world.model.pk])
    ended = {"state": "rolled_back", "weight_bp": 0, "ended_at": world.rollout.created_at}
    for _ in range(max(0, said.rollouts - ROWS) // ROWS):
        copies(world.rollout, ROWS, lambda _: ended)
    for number in range(said.events):
        append_event(
            verb="rollout.held", subject_type="rollout", subject_id=world.rollout.pk, actor=SYSTEM, reason=f"Tick {number}.",
            facts={"model": world.model.slug, "environment": "production"},
        )  # fmt: skip
    assert Rollout.objects.count() >= min(said.rollouts, ROWS)


if __name__ == "__main__":
    os.environ.setdefault("SLUICEGATE_LOG_LEVEL", "ERROR")
    main()
