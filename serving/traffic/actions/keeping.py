"""The hourly job of the kept series: packs hours that have ended, adds them up, makes partitions and drops old ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final

import numpy as np
from django.db import connection, transaction

from serving.models import SeriesBlock, SeriesMinute, TrafficSeries
from serving.traffic.actions.partitions import DAY, MINUTES, drop_partitions, make_partitions, partitions
from serving.traffic.core.packing import Block, packed, summed

KEEP: Final = "serving.keep_series"
HOUR: Final = timedelta(hours=1)
#: An hour is packed again in the next two runs: minutes that were written late then join it.
AGAIN: Final = 2
#: Series that are packed at a time.
AT_ONCE: Final = 500
_READ = """
SELECT series_id, at, known_s, array_send(counts) FROM serving_seriesminute
 WHERE series_id BETWEEN %s AND %s AND at >= %s AND at < %s ORDER BY series_id
"""
_BLOCKS = """
INSERT INTO serving_seriesblock (series_id, at, packed) SELECT series, %s, packed
  FROM unnest(%s::int[], %s::bytea[]) AS row(series, packed)
ON CONFLICT (series_id, at) DO UPDATE SET packed = EXCLUDED.packed
"""
_HOURS = """
INSERT INTO serving_serieshour (series_id, at, known_s, counts) SELECT series, %s, known_s, counts::bigint[]
  FROM unnest(%s::int[], %s::float[], %s::text[]) AS row(series, known_s, counts)
ON CONFLICT (series_id, at) DO UPDATE SET known_s = EXCLUDED.known_s, counts = EXCLUDED.counts
"""


class PartitionMissing(Exception):
    """There is no partition for tomorrow's minutes."""


def keep_series(now: datetime, beat: Callable[[], object] = lambda: None) -> str:
    """What was done. May run twice: each hour is written as a whole from its minutes. Raises PartitionMissing."""
    made = make_partitions(now)
    hours = list(_due(now))
    for hour in hours:
        beat()
        pack_hour(hour)
    dropped = drop_partitions(now)
    if (now + DAY).date() not in {first for _, first in partitions(MINUTES)}:
        raise PartitionMissing(f"serving_seriesminute has no partition for {now + DAY:%Y-%m-%d}")
    return f"{len(hours)} hours packed, {made} partitions made, {len(dropped)} dropped"


def _due(now: datetime) -> Iterator[datetime]:
    """Hours that have ended, from the last that were packed on; without one, from the first minute that is kept."""
    ended = now.replace(minute=0, second=0, microsecond=0) - HOUR
    last = SeriesBlock.objects.filter(at__gte=now - 3 * DAY).order_by("-at").values_list("at", flat=True).first()
    if last is None:
        first = SeriesMinute.objects.filter(at__gte=now - 3 * DAY).order_by("at").values_list("at", flat=True).first()
        last = (first or now).replace(minute=0, second=0, microsecond=0) + AGAIN * HOUR
    hour = last - AGAIN * HOUR
    while hour <= ended:
        yield hour
        hour += HOUR


def pack_hour(hour: datetime) -> None:
    """Writes the blocks and the sums of one hour from its minutes."""
    bounds = TrafficSeries.objects.order_by("pk").values_list("pk", flat=True)
    first, last = bounds.first(), bounds.last()
    for low in range(first or 0, (last or -1) + 1, AT_ONCE):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_READ, [low, low + AT_ONCE - 1, hour, hour + HOUR])
            blocks = {
                series: _block(hour, list(rows)) for series, rows in groupby(cursor.fetchall(), lambda row: row[0])
            }
            cursor.execute(_BLOCKS, [hour, list(blocks), [packed(one) for one in blocks.values()]])
            whole = TrafficSeries.objects.filter(pk__in=list(blocks), replica="", tenant="").values_list(
                "pk", flat=True
            )
            sums = {series: blocks[series].sum(axis=1) for series in whole}
            counts = [f"{{{','.join(map(str, one[1:]))}}}" for one in sums.values()]
            cursor.execute(_HOURS, [hour, list(sums), [float(one[0]) / 1000 for one in sums.values()], counts])


def _block(hour: datetime, rows: list[tuple[int, datetime, float, Any]]) -> Block:
    # `array_send`: a header of 20 bytes, then the length and the value of each element.
    counts = [np.frombuffer(row[3], ">i4")[6::2] for row in rows]
    minutes = ((at - hour).seconds // 60 for _, at, _, _ in rows)
    return summed(zip(minutes, (row[2] for row in rows), counts, strict=True), len(counts[0]))
