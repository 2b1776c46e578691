"""Events (append-only, hash-chained), jobs (leased rows), named leases with fencing tokens, and who is told of events."""

from __future__ import annotations

import uuid

from django.db import models

from accounts.models import Team
from ledger.core.delivery import OPEN, DeliveryState, Kind
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

    class Meta:
        ordering = ["seq"]
        indexes = [models.Index(fields=["subject_type", "subject_id", "-seq"], name="event_by_subject")]


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


class Subscription(models.Model):
    """Who is told of which events, and how: a webhook, or an e-mail address. People call both a webhook."""

    team = models.ForeignKey(
        Team, on_delete=models.CASCADE, null=True, related_name="subscriptions"
    )  # None: everybody's
    kind = models.CharField(max_length=10, choices=[(k.value, k.value) for k in Kind])
    target = models.CharField(max_length=500)  # the URL, or the e-mail address
    title = models.CharField(max_length=120, blank=True)
    verbs = models.JSONField(default=list)  # patterns such as rollout.*
    # encrypted: see ledger.secret_box
    secret = models.TextField(blank=True)
    previous_secret = models.TextField(blank=True)
    previous_until = models.DateTimeField(null=True, blank=True)  # until when the previous one signs as well
    is_active = models.BooleanField(default=True)
    may_be_private = models.BooleanField(default=False)  # an administrator named the target
    last_seq = models.BigIntegerField()  # every event up to here is in the deliveries, or is none of its own
    version = models.PositiveIntegerField(default=1)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(kind__in=[k.value for k in Kind]), name="subscription_kind_known"
            ),
            models.UniqueConstraint(
                fields=["team", "kind", "target"], nulls_distinct=False, name="subscription_once_per_target"
            ),
        ]


class Delivery(models.Model):
    """One event on its way to one subscription. Without an event it is a test."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)  # the receiver sees it as webhook-id
    subscription = models.ForeignKey(Subscription, on_delete=models.CASCADE, related_name="deliveries", db_index=False)
    event = models.ForeignKey(  # events are never deleted, so the database has nothing to check
        Event, on_delete=models.DO_NOTHING, null=True, related_name="+", db_index=False, db_constraint=False
    )
    state = models.CharField(
        max_length=10, default=DeliveryState.PENDING, choices=[(s.value, s.value) for s in DeliveryState]
    )
    # when it is sent next. While it is being sent, when it counts as lost and is sent again
    due_at = models.DateTimeField()
    attempts = models.PositiveIntegerField(default=0)
    attempts_before = models.PositiveIntegerField(default=0)  # those before it was last sent again by a person
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=[s.value for s in DeliveryState]), name="delivery_state_known"
            ),
            models.UniqueConstraint(fields=["subscription", "event"], name="delivery_once_per_event"),
        ]
        indexes = [
            # the next one of a subscription; whether any is due at all
            models.Index(
                fields=["subscription", "event"],
                condition=models.Q(state__in=[s.value for s in OPEN]),
                include=["due_at"],
                name="delivery_next",
            ),
            models.Index(fields=["due_at"], condition=models.Q(state__in=[s.value for s in OPEN]), name="delivery_due"),
            models.Index(fields=["subscription", "-created_at"], name="delivery_newest"),  # the log, newest first
            models.Index(fields=["ended_at"], name="delivery_ended"),  # what is old enough to be dropped
        ]


class Attempt(models.Model):
    """One try of a delivery, written when it begins; one without `ended_at` was cut off, or is being made."""

    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="tries", db_index=False)
    number = models.PositiveIntegerField()
    at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    status_code = models.PositiveSmallIntegerField(null=True, blank=True)
    error = models.CharField(max_length=500, blank=True)
    snippet = models.CharField(max_length=500, blank=True)
    duration_ms = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["delivery", "number"], name="attempt_once")]
