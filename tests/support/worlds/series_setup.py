"""Kept series of a model: an hour of minutes, with a gap and a slow end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta

from django.utils import timezone

from registry.models import Release
from serving.models import Environment, SeriesMinute, TrafficSeries
from serving.traffic.actions.partitions import make_partitions
from serving.traffic.core.buckets import EDGES_US


def kept(environment: Environment, releases: Sequence[Release], *, minutes: int = 70) -> None:
    """Each release has a third of the traffic of the one before. Minutes 30 to 34 have no reading; the last 15 are slow."""
    now, chance = timezone.now().replace(second=0, microsecond=0), random.Random(5)
    make_partitions(now - timedelta(minutes=minutes))
    model = releases[0].model
    names = ["requests", "errors", "shed", "forced", "asleep"]
    users = TrafficSeries.objects.create(environment=environment, model=model, names=names)
    classes = [f"us_{edge}" for edge in EDGES_US] + ["us_more"]
    arms = [
        TrafficSeries.objects.create(
            environment=environment, model=model, release=one.digest, names=["routed", "decided", "failed", *classes]
        )
        for one in releases
    ]
    rows = []
    for minute in range(minutes):
        if 30 <= minute < 35:
            continue
        at, total, failures = now - timedelta(minutes=minutes - minute), 0, 0
        for index, arm in enumerate(arms):
            requests = int(3000 / 3**index * chance.uniform(0.8, 1.2))
            failed = int(requests * (0.02 if minute > minutes - 15 and not index else 0.002))
            counts = dict.fromkeys(classes, 0)
            for _ in range(200):
                median_us = 40_000 * (1 + 3 * (minute > minutes - 15)) * (1 + index)
                took_us = chance.lognormvariate(0, 0.5) * median_us
                edge = next((edge for edge in EDGES_US if took_us < edge), None)
                counts[f"us_{edge}" if edge else "us_more"] += requests // 200
            rows.append((arm.pk, at, [requests, requests, failed, *counts.values()]))
            total, failures = total + requests, failures + failed // 2
        rows.append((users.pk, at, [total, failures, 0, 0, 0]))
    SeriesMinute.objects.bulk_create(
        [SeriesMinute(series_id=pk, at=at, fence=1, known_s=60.0, counts=counts) for pk, at, counts in rows]
    )
