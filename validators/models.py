"""Golden sets, gate runs and signed reports. Evidence is append-only, by trigger."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from accounts.models import User
from registry.models import Blob, Release, ServedModel
from serving.models import Environment
from validators.core.lifecycle import GateRunState
from validators.core.verdict import Verdict


class GoldenSet(models.Model):
    """Labelled examples of a model: a blob of JSON lines {"id", "inputs": {name: value}, "label", "slice"}."""

    model = models.ForeignKey(ServedModel, on_delete=models.PROTECT, related_name="golden_sets")
    digest = models.CharField(max_length=71)  # sha256:<64 hex> of the file
    blob = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="+")
    items = models.PositiveIntegerField()
    slices = models.JSONField(default=dict)  # {slice: items}
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["model", "digest"], name="golden_set_once")]


class SeenSizesRecord(models.Model):
    """How many requests of each size users sent to a model in an environment, in its newest rollout that saw enough of them."""

    model = models.ForeignKey(ServedModel, on_delete=models.CASCADE, related_name="+")
    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="+")
    counts = models.JSONField()  # as `validators.core.seen_sizes.SeenSizes` has them
    requests = models.PositiveBigIntegerField()
    since_at = models.DateTimeField()
    until_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["model", "environment"], name="seen_sizes_once")]


class GateRun(models.Model):
    """One run of a policy's gates over one release."""

    release = models.ForeignKey(Release, on_delete=models.PROTECT, related_name="gate_runs")
    environment = models.ForeignKey(
        Environment, on_delete=models.PROTECT, related_name="+"
    )  # where the release is run for it
    policy = models.JSONField()
    policy_digest = models.CharField(max_length=71)
    baseline = models.ForeignKey(Release, null=True, on_delete=models.PROTECT, related_name="+")  # stable when it began
    state = models.CharField(max_length=10, default=GateRunState.QUEUED)
    verdict = models.CharField(max_length=10, blank=True)  # set with state finished
    reason = models.TextField(blank=True)
    requested_by = models.CharField(max_length=150)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(state__in=[s.value for s in GateRunState]), name="gate_run_state_known"),
            models.CheckConstraint(
                condition=Q(verdict__in=["", *[v.value for v in Verdict]]), name="gate_run_verdict_known"
            ),
            models.UniqueConstraint(
                fields=["release"], condition=Q(state__in=["queued", "running"]), name="gate_run_once_running"
            ),
        ]


class GateResult(models.Model):
    """One gate of one gate run. Immutable once it has a verdict (trigger)."""

    gate_run = models.ForeignKey(GateRun, on_delete=models.PROTECT, related_name="results")
    gate = models.CharField(max_length=30)
    position = models.PositiveIntegerField()
    verdict = models.CharField(max_length=10, blank=True)  # empty: not judged yet
    reason = models.TextField(blank=True)  # one sentence; until there is a verdict, what it does or waits for
    evidence = models.JSONField(default=dict)
    progress_done = models.PositiveIntegerField(default=0)
    progress_total = models.PositiveIntegerField(default=0)
    measured = models.JSONField(default=dict)  # where: `validators.core.expiry.place_of`, and the baseline's digest
    reused_from = models.ForeignKey("Report", null=True, on_delete=models.PROTECT, related_name="+")  # it holds still
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["position"]
        constraints = [
            models.UniqueConstraint(fields=["gate_run", "gate"], name="gate_result_once"),
            models.CheckConstraint(
                condition=Q(verdict__in=["", *[v.value for v in Verdict]]), name="gate_result_verdict_known"
            ),
        ]


class Report(models.Model):
    """The sealed outcome of a gate run: canonical JSON, its digest, and an Ed25519 signature over the digest."""

    gate_run = models.OneToOneField(GateRun, on_delete=models.PROTECT, related_name="report")
    release = models.ForeignKey(Release, on_delete=models.PROTECT, related_name="reports")
    manifest_digest = models.CharField(max_length=71)
    policy_digest = models.CharField(max_length=71)
    verdict = models.CharField(max_length=10)
    body = models.TextField()  # canonical JSON
    digest = models.CharField(max_length=71, unique=True)
    signature = models.TextField()  # base64
    key_id = models.CharField(max_length=71)
    created_at = models.DateTimeField(auto_now_add=True)


class Measurement(models.Model):
    """One number of a report, so that releases are found by it. The report itself is what counts."""

    report = models.ForeignKey(Report, on_delete=models.CASCADE, related_name="measurements")
    gate = models.CharField(max_length=30)
    name = models.CharField(max_length=60)
    unit = models.CharField(max_length=10)  # frac, ms, s, MiB
    value = models.FloatField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["report", "gate", "name"], name="measurement_once")]
