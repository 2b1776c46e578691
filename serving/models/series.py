"""Tables of the kept series. Minutes, blocks and hours are partitioned by time (`serving.traffic.actions.partitions`)."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from registry.models import ServedModel


class TrafficSeries(models.Model):
    """Counters of one subject, by name. A new counter makes a new series, so tables never change.

    Without a release, replica and tenant: requests as the users of the model saw them.
    """

    id = models.AutoField(primary_key=True)
    environment = models.ForeignKey("serving.Environment", on_delete=models.CASCADE, related_name="+")
    model = models.ForeignKey(ServedModel, on_delete=models.CASCADE, related_name="+")
    release = models.CharField(max_length=71, blank=True)  # digest
    replica = models.CharField(max_length=200, blank=True)
    tenant = models.CharField(max_length=120, blank=True)
    names = ArrayField(models.TextField())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["environment", "model", "release", "replica", "tenant", "names"], name="series_once"
            )
        ]


class SeriesMinute(models.Model):
    """Counts of one minute by one writer. `fence`: the writer's term of leadership; `known_s`: seconds that were read."""

    pk = models.CompositePrimaryKey("series", "at", "fence")
    series = models.ForeignKey(TrafficSeries, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    at = models.DateTimeField()
    fence = models.BigIntegerField()
    known_s = models.FloatField()
    counts = ArrayField(models.IntegerField())


class SeriesBlock(models.Model):
    """The minutes of one hour, packed by `serving.traffic.core.packing`."""

    pk = models.CompositePrimaryKey("series", "at")
    series = models.ForeignKey(TrafficSeries, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    at = models.DateTimeField()
    packed = models.BinaryField()


class SeriesHour(models.Model):
    """Sums of one hour, of a series without replica and tenant."""

    pk = models.CompositePrimaryKey("series", "at")
    series = models.ForeignKey(TrafficSeries, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    at = models.DateTimeField()
    known_s = models.FloatField()
    counts = ArrayField(models.BigIntegerField())
