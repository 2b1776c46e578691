"""What every page takes at size, through every layer but HTTP itself; and the API's long lists.

    python -m benchmarks.pages [--releases 100000] [--rollouts 1000] [--events 100000] [--requests 40] [--only NAME ...]

A durable PostgreSQL of its own with one model of so many releases and rollouts, and 200 other models that are served; each page and
fragment that answers to GET is asked so often, by an administrator, who sees everything. `wall` is what somebody waits. `cpu` is what
this process and its PostgreSQL session compute (`sql`: the session alone, p50), which does not depend on what else the machine does.
`queries` and `gz` (bytes, compressed) are of one answer. The bar is a p95 of 50 ms of CPU, 12 queries, and 8 KiB for a fragment; a
page whose wall p95 alone is over 50 ms is marked as such: on a machine that does nothing else, that is a miss too.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.stores import database

BAR_MS, MOST_QUERIES, MOST_FRAGMENT_BYTES = 50.0, 12, 8 * 1024
#: Rows of every other list.
ROWS = 200
#: Streams of everything that is found: with 100,000 events each takes most of a minute. Not asked unless they are named.
EXPORTS = ("audit_jsonl", "audit_csv")
#: Pages of which a process keeps what it drew or judged; they are measured without that as well.


@dataclass
class Cost:
    """What one address took: milliseconds of each request, queries, compressed bytes."""

    name: str
    queries: int
    size: int = 0
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    sql: list[float] = field(default_factory=list)

    def misses(self) -> list[str]:
        """The bars that it is over."""
        bars = (
            ("cpu", _p95(self.cpu) > BAR_MS),
            ("queries", self.queries > MOST_QUERIES),
            ("large", self.name.endswith("_live") and self.size > MOST_FRAGMENT_BYTES),
        )
        return [word for word, is_over in bars if is_over]

    def line(self) -> str:
        slow = ["wall"] if _p95(self.wall) > BAR_MS else []
        figures = (statistics.median(self.wall), _p95(self.wall), statistics.median(self.cpu), _p95(self.cpu))
        columns = " ".join(f"{ms:7.1f}" for ms in (*figures, statistics.median(self.sql)))
        return f"{self.name:32} {columns} {self.queries:8} {self.size:7}  {' '.join(self.misses() + slow)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", type=int, default=100_000)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--only", nargs="*", help="names, as the first column has them")
    said = parser.parse_args()
    with database(is_durable=True):
        from django.conf import settings
        from django.core.management import call_command
        from django.db import connection, transaction

        from tests.support.worlds.page_world import page_world

        settings.ALLOWED_HOSTS = ["testserver"]
        settings.LOGGING_CONFIG = None
        call_command("collectstatic", interactive=False, verbosity=0)
        with transaction.atomic():
            world = page_world(ROWS)
        grow(world, said.releases, said.rollouts, said.events)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
        report(world, said.requests, said.only)


def report(world: Any, requests: int, only: list[str] | None) -> None:
    """Prints a line for each address, and how many are over a bar."""
    heads = ["wall50", "wall95", "cpu50", "cpu95", "sql", "queries", "gz"]
    print(f"{'page (milliseconds)':32} " + " ".join(f"{head:>7}" for head in heads))
    missed = 0
    for cost in costs(world, requests, only):
        missed += bool(cost.misses())
        print(cost.line(), flush=True)
    print(f"{missed} over a bar" if missed else "every one within its bars")


def costs(world: Any, requests: int, only: list[str] | None) -> Iterator[Cost]:
    """Of every page, fragment and long list that answers with 200."""
    from django.db import connection
    from django.test import Client

    from tests.support.worlds.page_world import addresses, asked_for_more

    client = Client(raise_request_exception=False)
    client.force_login(world.admin)
    every = [*addresses(world), *asked_for_more(world), *lists(world)]
    chosen = [(name, address) for name, address in every if (name in only if only else name not in EXPORTS)]
    for _, address in chosen:
        client.get(address)  # fills caches
    gc.collect()
    gc.freeze()  # as `sluicegate.front.collection` does
    with connection.cursor() as cursor:  # a session's own clock has not the time of those that would help it
        cursor.execute("SET max_parallel_workers_per_gather = 0")
    for name, address in chosen:
        asked: list[str] = []

        def counted(execute: Any, sql: str, *rest: Any, asked: list[str] = asked) -> Any:
            asked.append(sql)
            return execute(sql, *rest)

        with connection.execute_wrapper(counted):
            answer: Any = client.get(address)
        if answer.status_code != 200:
            continue
        yield _measured(Cost(name, len(asked)), client, address, requests)


def _measured(
    cost: Cost, client: Any, address: str, requests: int, *, before: Callable[[], None] = lambda: None
) -> Cost:
    session = _clock_of_session()
    for _ in range(requests):
        before()
        wall, cpu, sql = time.perf_counter(), time.process_time(), time.clock_gettime(session)
        answer = client.get(address)
        body = b"".join(answer.streaming_content) if answer.streaming else answer.content
        cost.wall.append(1000 * (time.perf_counter() - wall))
        cost.sql.append(1000 * (time.clock_gettime(session) - sql))
        cost.cpu.append(1000 * (time.process_time() - cpu) + cost.sql[-1])
    cost.size = len(gzip.compress(body))
    return cost


def _clock_of_session() -> int:
    """The CPU clock of the PostgreSQL process that serves this connection, for `time.clock_gettime` (Linux: clock_getcpuclockid)."""
    from django.db import connection

    connection.ensure_connection()
    return (~connection.connection.info.backend_pid << 3) | 2


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def lists(world: Any) -> Iterator[tuple[str, str]]:
    """(name, address) of what programs ask of the API at length: every list that can grow, and its filters."""
    slug, prefix = world.model.slug, "/api/v1"
    releases, events = f"{prefix}/models/{slug}/releases", f"{prefix}/events"
    for path in ("models", "rollouts", "rollouts?state=rolled_back", "users", "webhooks"):
        yield f"API {path}", f"{prefix}/{path}"
    yield "API releases", releases
    for where in ("verdict=passed", "verdict=failed", "metric.golden.accuracy>=0.9", "envelope.max_batch_size>=1"):
        yield f"API releases {where}", f"{releases}?where={where}"
    yield "API releases, 200", f"{releases}?page_size=200"
    yield "API events", events
    for query in (f"model={slug}", "q=tick", "q=tick+999", "q=nowhere", "verb=rollout.*", "actor=nobody"):
        yield f"API events {query}", f"{events}?{query}"
    yield "API gate-runs", f"{releases}/r1/gate-runs"


def grow(world: Any, releases: int, rollouts: int, events: int) -> None:
    """The one model's releases, rollouts and events, written without their stories."""
    from django.db import connection

    from rollouts.models import Rollout
    from tests.support.worlds.page_world import copies

    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO registry_release (id, model_id, state, spec, expected_files, manifest, is_code_bearing, version, "
            "created_at, number, digest, sealed_at) SELECT md5('many ' || n)::uuid, %s, 'sealed', '{}', '[]', %s, false, 2, now(), "
            "10000 + n, 'sha256:' || encode(sha256(convert_to('many ' || n, 'UTF8')), 'hex'), now() FROM generate_series(1, %s) n",
            [world.model.pk, world.release.manifest, releases],
        )
        cursor.execute(
            "UPDATE registry_servedmodel SET last_number = %s WHERE id = %s", [10_000 + releases, world.model.pk]
        )
    ended = {"state": "rolled_back", "weight_bp": 0, "ended_at": world.rollout.created_at}
    for _ in range(max(0, rollouts - ROWS) // ROWS):
        copies(world.rollout, ROWS, lambda _: ended)
    _write_events(world, events)
    assert Rollout.objects.count() >= min(rollouts, ROWS)


def _write_events(world: Any, count: int) -> None:
    """So many more events at the end of the chain, of the rollout's ticks, a thousand at once: one by one each would wait for the last."""
    from django.db import transaction
    from django.utils import timezone

    from ledger.models import ChainHead, Event
    from ledger.queries.chain_verification import link_of

    head = ChainHead.objects.get()
    for begin in range(0, count, 1000):
        events, at = [], timezone.now()
        for number in range(begin, min(count, begin + 1000)):
            event = Event(
                seq=head.seq + 1, at=at, verb="rollout.held", subject_type="rollout", subject_id=str(world.rollout.pk),
                actor="tests", reason=f"Tick {number}.", prev_hash=head.hash,
                facts={"model": world.model.slug, "environment": "production"},
            )  # fmt: skip
            event.hash = link_of(event).expected_hash()
            head.seq, head.hash = event.seq, event.hash
            events.append(event)
        with transaction.atomic():
            Event.objects.bulk_create(events)
            head.save()


if __name__ == "__main__":
    os.environ.setdefault("SLUICEGATE_LOG_LEVEL", "ERROR")
    main()
