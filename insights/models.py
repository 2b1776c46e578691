"""Incidents: the record of each production problem of a model."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from insights.core.incident import IncidentState
from registry.models import Release, ServedModel
from serving.models import Environment


class Incident(models.Model):
    """One problem of a model in an environment; at most one is open there.

    `release` was stable when it opened. `kept` is the evidence of that moment (`insights.queries.evidence`): it stays when
    servers, logs and counts are gone. `result` is what a person wrote at the end.
    """

    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, related_name="+")
    model = models.ForeignKey(ServedModel, on_delete=models.PROTECT, related_name="incidents")
    release = models.ForeignKey(Release, null=True, on_delete=models.PROTECT, related_name="+")
    state = models.CharField(max_length=10, default=IncidentState.OPEN)
    title = models.CharField(max_length=200)
    kept = models.JSONField(default=dict)
    opened_at = models.DateTimeField()
    opened_by = models.CharField(max_length=150)
    closed_at = models.DateTimeField(null=True)
    closed_by = models.CharField(max_length=150, blank=True)
    result = models.TextField(blank=True)
    version = models.PositiveIntegerField(default=1)  # If-Match

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in IncidentState]), name="incident_state_known"
            ),
            models.UniqueConstraint(
                fields=["environment", "model"],
                condition=Q(state=IncidentState.OPEN.value),
                name="incident_one_open",
            ),
        ]
