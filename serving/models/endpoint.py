"""The table of endpoints."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from serving.environments.core.endpoints import EndpointState


class Endpoint(models.Model):
    """One replica of a release, as its platform publishes it: all that gateways, the prober and the engine read of where a release runs.

    The platforms of this machine publish by triggers on `Replica` and `Server`; another platform calls `publish`. The last row of a
    release in an environment stays, in the state `gone`. The environment and the release of a row never change.
    """

    environment = models.ForeignKey("serving.Environment", on_delete=models.CASCADE, related_name="endpoints")
    release = models.ForeignKey("registry.Release", on_delete=models.CASCADE, related_name="endpoints")
    replica = models.CharField(max_length=200, unique=True)  # the platform's handle; opaque to readers
    node = models.ForeignKey("serving.Node", on_delete=models.CASCADE, related_name="endpoints")  # reports the replica
    state = models.CharField(max_length=10)
    why = models.TextField(blank=True, default="", db_default="")
    host = models.CharField(max_length=120, null=True)  # null: no address yet
    http_port = models.PositiveIntegerField(null=True)
    grpc_port = models.PositiveIntegerField(null=True)
    is_serving = models.BooleanField(default=False, db_default=False)  # it answered a real inference
    was_well = models.BooleanField(default=False, db_default=False)  # it answered one once
    is_leaving = models.BooleanField(
        default=False, db_default=False
    )  # it is drained: another has its place, or none is wanted
    is_set_aside = models.BooleanField(default=False, db_default=False)  # gateways are to send it nothing
    since = models.DateTimeField(null=True)  # when the server at the address began
    has_drifted = models.BooleanField(default=False, db_default=False)  # its files are not those that were sealed

    class Meta:
        indexes = [models.Index(fields=["release", "environment"], name="endpoint_of_release")]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in EndpointState]), name="endpoint_state_known"
            ),
            models.CheckConstraint(
                condition=Q(is_serving=False) | Q(host__isnull=False, http_port__isnull=False, grpc_port__isnull=False),
                name="endpoint_serves_at_an_address",
            ),
        ]

    @property
    def name(self) -> str:
        """`node:port`, with the port of HTTP."""
        return f"{self.node_id}:{self.http_port}"
