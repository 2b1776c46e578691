"""Events (append-only, hash-chained), jobs (leased rows), and named leases with fencing tokens."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Case, F, When
from django.db.models.fields.json import KT
from django.db.models.functions import Left

from ledger.core.lifecycle import JobState


class Event(models.Model):
    """One thing that happened. Rows outlive their subject, so subjects are named, not foreign keys.

    A database trigger refuses UPDATE and DELETE. `hash` covers the row and `prev_hash`, so that an edit,
    a deletion or a reordering is found by `audit verify`.
    """

    seq = models.BigAutoField(primary_key=True)
    at = models.DateTimeField()
    act_id = models.UUIDField(default=uuid.uuid4)  # groups what one act caused
    verb = models.CharField(max_length=60)
    subject_type = models.CharField(max_length=30)
    subject_id = models.CharField(max_length=120)
    actor = models.CharField(max_length=150)
    from_state = models.CharField(max_length=30, blank=True)
    to_state = models.CharField(max_length=30, blank=True)
    reason = models.TextField(blank=True)
    facts = models.JSONField(default=dict)
    prev_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64, unique=True)
    # the model that it is about, read out of the row by the database; null where it is about none
    model = models.GeneratedField(
        expression=Case(
            When(subject_type="model", then=Left(F("subject_id"), 120)),
            default=Left(KT("facts__model"), 120),
            output_field=models.TextField(),
        ),
        output_field=models.TextField(),
        db_persist=True,
    )

    class Meta:
        ordering = ["seq"]
        # Each serves the audit's filter of that name, the newest first; a migration adds `event_words` for its text.
        indexes = [
            models.Index(fields=["subject_type", "subject_id", "-seq"], name="event_by_subject"),
            models.Index(fields=["model", "-seq"], name="event_by_model"),  # and what a team's members may read
            models.Index(fields=["actor", "-seq"], name="event_by_actor"),
            models.Index(fields=["verb", "-seq"], name="event_by_verb"),
            models.Index(fields=["at"], name="event_by_time"),  # where a time begins in the order of `seq`
        ]


class ChainHead(models.Model):
    """The last event written. One row; a log that ends elsewhere was cut off."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    seq = models.BigIntegerField()
    hash = models.CharField(max_length=64)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="chain_has_one_head")]


class Job(models.Model):
    """Work that is due. Celery only carries the id: whoever holds the lease runs it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    kind = models.CharField(max_length=60)
    key = models.CharField(
        max_length=120
    )  # what it is about, such as "gate_run:12"; one unfinished job per (kind, key)
    queue = models.CharField(max_length=60, default="default")
    args = models.JSONField(default=dict)
    state = models.CharField(max_length=10, default=JobState.QUEUED, choices=[(s.value, s.value) for s in JobState])
    owner = models.CharField(max_length=120, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    max_attempts = models.PositiveIntegerField(default=3)
    due_at = models.DateTimeField()
    sent_at = models.DateTimeField(
        null=True, blank=True
    )  # when Celery last got its id; the sweep does not send it again at once
    progress_done = models.PositiveIntegerField(default=0)
    progress_total = models.PositiveIntegerField(default=0)
    progress_note = models.CharField(max_length=300, blank=True)
    error = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(state__in=[s.value for s in JobState]), name="job_state_known"),
            models.UniqueConstraint(
                fields=["kind", "key"], condition=models.Q(state__in=["queued", "running"]), name="job_once_unfinished"
            ),
        ]
        indexes = [
            # the sweep that re-dispatches what is due or was abandoned
            models.Index(fields=["state", "lease_until", "due_at"], name="job_due"),
        ]


class Lease(models.Model):
    """Leadership of a name, such as `engine`. `token` grows with every new holder and fences the old one out."""

    name = models.CharField(primary_key=True, max_length=60)
    owner = models.CharField(max_length=120, blank=True)
    token = models.BigIntegerField(default=0)
    expires_at = models.DateTimeField(null=True, blank=True)


class ProcessAddress(models.Model):
    """Where a process of this installation answers /livez, /readyz and /metrics: it says so every few seconds."""

    address = models.CharField(primary_key=True, max_length=120)  # host:port
    name = models.CharField(max_length=60)  # web, worker, engine, …
    seen_at = models.DateTimeField()
