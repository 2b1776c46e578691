"""What kept series cost: rows, bytes and the time of writes, packing and queries, for MODELS x SERIES.

    python -m benchmarks.series_cost [--models 1000] [--series 3] [--days 7] [--queries 40]

A PostgreSQL of its own (durable). Two hours are written by minute and packed by the product's own code. The other hours are copies
of these with other times, since packing costs the same for each hour.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from benchmarks.stores import database


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("models", 1000), ("series", 3), ("days", 7), ("queries", 40)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    with database(is_durable=True):
        json.dump(run(asked), sys.stdout, indent=2)


def timed(act: Callable[[], Any]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000


def run(asked: argparse.Namespace) -> dict[str, Any]:
    from django.db import connection

    from serving.models import Environment, TrafficSeries
    from serving.traffic.actions.keeping import pack_hour
    from serving.traffic.actions.partitions import make_partitions
    from serving.traffic.actions.recorder import _RELEASE, _WRITE
    from serving.traffic.core.buckets import EDGES_US
    from serving.traffic.queries.series import series_of
    from tests.support.worlds.factories import make_environment, make_model

    names = [*_RELEASE, *(f"us_{edge}" for edge in EDGES_US), "us_more"]
    environment: Environment = make_environment("production")
    models = [make_model(f"model-{index}") for index in range(asked.models)]
    whole = [
        TrafficSeries(environment=environment, model=model, names=["requests", "errors", "shed", "forced", "asleep"])
        for model in models
    ]
    arms = [
        TrafficSeries(environment=environment, model=model, release=f"sha256:{number:064x}", names=names)
        for model in models
        for number in range(asked.series)
    ]
    ids = [one.pk for one in TrafficSeries.objects.bulk_create([*arms, *whole])]
    begin = datetime(2026, 1, 5, tzinfo=UTC)
    make_partitions(begin, begin + timedelta(days=asked.days + 1))
    random = np.random.default_rng(7)
    rate = random.lognormal(5.0, 1.5, len(arms))  # requests per minute
    place = random.integers(6, 16, len(arms))

    def minute(at: datetime) -> float:
        requests = random.poisson(rate * (1 + 0.5 * np.sin(at.hour / 24 * 2 * np.pi)))
        spread = np.abs(np.arange(len(EDGES_US) + 1) - place[:, None])
        share = np.exp(-spread / 1.5)
        classes = random.poisson(requests[:, None] * share / share.sum(axis=1, keepdims=True))
        failed = random.binomial(requests, 0.002)
        none = np.zeros_like(requests)
        columns = np.stack([requests, requests, failed, none, none, none, none, none, none, requests], axis=1)
        rows = [f"{{{','.join(map(str, row))}}}" for row in np.hstack([columns, classes]).tolist()]
        users = [f"{{{count},0,0,0,0}}" for count in requests[: len(whole)]]

        def write() -> None:
            with connection.cursor() as cursor:
                cursor.execute(_WRITE, [at, 1, ids, [60.0] * len(ids), rows + users])

        return timed(write)

    writes = [minute(begin + timedelta(minutes=index)) for index in range(120)]
    minute_bytes = size_of("serving_seriesminute_%") / 120
    packs = [timed(lambda hour=hour: pack_hour(begin + timedelta(hours=hour))) for hour in (0, 1)]
    with connection.cursor() as cursor:
        for hour in range(2, asked.days * 24):
            for table, columns in (("seriesblock", "packed"), ("serieshour", "known_s, counts")):
                cursor.execute(
                    f"INSERT INTO serving_{table} (series_id, at, {columns}) SELECT series_id, %s, {columns} "
                    f"FROM serving_{table} WHERE at = %s",
                    [begin + timedelta(hours=hour), begin + timedelta(hours=hour % 2)],
                )
        cursor.execute("ANALYZE")
    hours = asked.days * 24
    block_bytes, hour_bytes = (size_of(f"serving_{name}_%") / hours for name in ("seriesblock", "serieshour"))
    end = begin + timedelta(days=asked.days)
    reads: list[float] = []
    for index in random.integers(0, len(models), asked.queries):
        reads.append(
            timed(
                lambda index=index: series_of(
                    models[index], environment, since=begin, until=end, step_s=1800, by="release", now=end
                )
            )
        )
    day = timed(
        lambda: series_of(
            models[0], environment, since=end - timedelta(days=1), until=end, step_s=300, by="release", now=end
        )
    )
    return {
        "series": len(ids),
        "minute_rows_per_day": len(ids) * 1440,
        "minute_bytes_per_row": round(minute_bytes / len(ids)),
        "minute_gb_of_2_days": round(minute_bytes * 2880 / 1e9, 2),
        "block_bytes_per_minute_row": round(block_bytes / len(ids) / 60, 1),
        "block_mb_per_day": round(block_bytes * 24 / 1e6, 1),
        "block_gb_of_30_days": round(block_bytes * 720 / 1e9, 2),
        "hour_rows_gb_of_13_months": round(hour_bytes * 24 * 396 / 1e9, 2),
        "packed_divided_by_minutes": round(block_bytes / 60 / minute_bytes, 3),
        "write_ms": {"median": round(float(np.median(writes)), 1), "p95": round(float(np.quantile(writes, 0.95)), 1)},
        "pack_hour_ms": [round(one) for one in packs],
        "week_query_ms": {
            "first": round(reads[0], 1), "median": round(float(np.median(reads)), 1), "p95": round(float(np.quantile(reads, 0.95)), 1),
        },
        "day_query_ms": round(day, 1),
    }  # fmt: skip


def size_of(pattern: str) -> int:
    """Bytes of the tables whose name is like the pattern, with indexes and TOAST."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE %s AND relkind = 'r'", [pattern]
        )
        return int(cursor.fetchone()[0] or 0)


if __name__ == "__main__":
    main()
