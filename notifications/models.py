"""Webhooks (receivers and their events), deliveries (one event for one webhook) and their attempts."""

from __future__ import annotations

import uuid

from django.db import models

from accounts.models import Team, User
from ledger.models import Event
from notifications.core.delivery import OPEN, DeliveryState, ReceiverKind
from notifications.core.formats import WebhookFormat


class Webhook(models.Model):
    """A receiver, its events and its format: a webhook, or an e-mail address. The pages call both a webhook."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, null=True, related_name="webhooks")  # None: everybody's
    kind = models.CharField(max_length=10, choices=[(k.value, k.value) for k in ReceiverKind])
    # format of messages to a URL; empty for an e-mail address
    format = models.CharField(
        max_length=16, blank=True, default=WebhookFormat.SIGNED, choices=[(f.value, f.value) for f in WebhookFormat]
    )
    target = models.CharField(max_length=500)  # the URL as far as it may be shown, or the e-mail address
    # encrypted URL if the URL is the secret (Slack, Teams); else empty, and `target` is the URL
    secret_target = models.TextField(blank=True)
    # of that URL, or of the routing key: people and the database know two of them apart by it
    fingerprint = models.CharField(max_length=8, blank=True)
    title = models.CharField(max_length=120, blank=True)
    verbs = models.JSONField(default=list)  # patterns such as rollout.*
    # encrypted: see ledger.adapters.secret_encryption. What signs; PagerDuty's routing key
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
                condition=models.Q(kind__in=[k.value for k in ReceiverKind]), name="webhook_kind_known"
            ),
            models.CheckConstraint(
                condition=models.Q(kind=ReceiverKind.WEBHOOK, format__in=[f.value for f in WebhookFormat])
                | (~models.Q(kind=ReceiverKind.WEBHOOK) & models.Q(format="")),
                name="webhook_format_known",
            ),
            models.UniqueConstraint(
                fields=["team", "kind", "target", "fingerprint"], nulls_distinct=False, name="webhook_once_per_target"
            ),
        ]


class Delivery(models.Model):
    """One event on its way to one webhook. Without an event it is a test."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)  # the receiver sees it as webhook-id
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries", db_index=False)
    event = models.ForeignKey(  # events are never deleted, so the database has nothing to check
        Event, on_delete=models.DO_NOTHING, null=True, related_name="+", db_index=False, db_constraint=False
    )
    # of a mail to one person: the recipient, and the need, such as approval:17:start; each is mailed once
    person = models.ForeignKey(User, on_delete=models.CASCADE, null=True, related_name="+")
    need = models.CharField(max_length=100, blank=True)
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
            models.UniqueConstraint(
                fields=["webhook", "event"], condition=models.Q(person=None), name="delivery_once_per_event"
            ),
            models.UniqueConstraint(
                fields=["webhook", "person", "need"], condition=~models.Q(person=None), name="delivery_once_per_need"
            ),
        ]
        indexes = [
            # the next delivery of a webhook; whether any is due at all
            models.Index(
                fields=["webhook", "event"],
                condition=models.Q(state__in=[s.value for s in OPEN]),
                include=["due_at"],
                name="delivery_next",
            ),
            models.Index(fields=["due_at"], condition=models.Q(state__in=[s.value for s in OPEN]), name="delivery_due"),
            models.Index(fields=["webhook", "-created_at"], name="delivery_newest"),  # the log, newest first
            models.Index(fields=["ended_at"], name="delivery_ended"),  # deliveries old enough to be dropped
        ]


class MailChoice(models.Model):
    """A person's choice of mails. Without a row the person gets all. Mails go to the address of the account."""

    user = models.OneToOneField(User, on_delete=models.CASCADE, primary_key=True, related_name="mail_choice")
    wants_approvals = models.BooleanField(default=True)
    wants_rollbacks = models.BooleanField(default=True)


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
