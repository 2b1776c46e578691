"""The tables of notifications. Replaces the first 3 migrations: a database that applied them all skips this one."""

import uuid

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from ledger.migrations._together import Together


class Migration(migrations.Migration):
    replaces = [
        ("notifications", "0001_from_the_ledger"),
        ("notifications", "0002_formats"),
        ("notifications", "0003_mails_to_people"),
    ]

    initial = True

    dependencies = [
        ("accounts", "0001_squashed_0007_tallies_found_by_index"),
        ("ledger", "0001_squashed_0008_event_search"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        Together(
            migrations.CreateModel(
                name="MailChoice",
                fields=[
                    (
                        "user",
                        models.OneToOneField(
                            on_delete=django.db.models.deletion.CASCADE,
                            primary_key=True,
                            related_name="mail_choice",
                            serialize=False,
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                    ("wants_approvals", models.BooleanField(default=True)),
                    ("wants_rollbacks", models.BooleanField(default=True)),
                ],
            ),
            migrations.CreateModel(
                name="Webhook",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "kind",
                        models.CharField(
                            choices=[("webhook", "webhook"), ("email", "email"), ("people", "people")], max_length=10
                        ),
                    ),
                    ("target", models.CharField(max_length=500)),
                    ("title", models.CharField(blank=True, max_length=120)),
                    ("verbs", models.JSONField(default=list)),
                    ("secret", models.TextField(blank=True)),
                    ("previous_secret", models.TextField(blank=True)),
                    ("previous_until", models.DateTimeField(blank=True, null=True)),
                    ("is_active", models.BooleanField(default=True)),
                    ("may_be_private", models.BooleanField(default=False)),
                    ("last_seq", models.BigIntegerField()),
                    ("version", models.PositiveIntegerField(default=1)),
                    ("created_by", models.CharField(max_length=150)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    (
                        "format",
                        models.CharField(
                            blank=True,
                            choices=[
                                ("signed", "signed"),
                                ("slack", "slack"),
                                ("teams", "teams"),
                                ("pagerduty", "pagerduty"),
                            ],
                            default="signed",
                            max_length=10,
                        ),
                    ),
                    ("secret_target", models.TextField(blank=True)),
                    ("fingerprint", models.CharField(blank=True, max_length=8)),
                    (
                        "team",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="webhooks",
                            to="accounts.team",
                        ),
                    ),
                ],
                options={
                    "ordering": ["pk"],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(
                                    ("format__in", ["signed", "slack", "teams", "pagerduty"]), ("kind", "webhook")
                                ),
                                models.Q(models.Q(("kind", "webhook"), _negated=True), ("format", "")),
                                _connector="OR",
                            ),
                            name="webhook_format_known",
                        ),
                        models.UniqueConstraint(
                            fields=("team", "kind", "target", "fingerprint"),
                            name="webhook_once_per_target",
                            nulls_distinct=False,
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("kind__in", ["webhook", "email", "people"])), name="webhook_kind_known"
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Delivery",
                fields=[
                    ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                    (
                        "state",
                        models.CharField(
                            choices=[
                                ("pending", "pending"),
                                ("failed", "failed"),
                                ("delivered", "delivered"),
                                ("gave_up", "gave_up"),
                                ("withdrawn", "withdrawn"),
                            ],
                            default="pending",
                            max_length=10,
                        ),
                    ),
                    ("due_at", models.DateTimeField()),
                    ("attempts", models.PositiveIntegerField(default=0)),
                    ("attempts_before", models.PositiveIntegerField(default=0)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    ("ended_at", models.DateTimeField(blank=True, null=True)),
                    ("need", models.CharField(blank=True, max_length=100)),
                    (
                        "event",
                        models.ForeignKey(
                            db_constraint=False,
                            db_index=False,
                            null=True,
                            on_delete=django.db.models.deletion.DO_NOTHING,
                            related_name="+",
                            to="ledger.event",
                        ),
                    ),
                    (
                        "person",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="+",
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                    (
                        "webhook",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="deliveries",
                            to="notifications.webhook",
                        ),
                    ),
                ],
                options={
                    "indexes": [
                        models.Index(
                            condition=models.Q(("state__in", ["pending", "failed"])),
                            fields=["webhook", "event"],
                            include=("due_at",),
                            name="delivery_next",
                        ),
                        models.Index(
                            condition=models.Q(("state__in", ["pending", "failed"])),
                            fields=["due_at"],
                            name="delivery_due",
                        ),
                        models.Index(fields=["webhook", "-created_at"], name="delivery_newest"),
                        models.Index(fields=["ended_at"], name="delivery_ended"),
                    ],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(
                                ("state__in", ["pending", "failed", "delivered", "gave_up", "withdrawn"])
                            ),
                            name="delivery_state_known",
                        ),
                        models.UniqueConstraint(
                            condition=models.Q(("person", None)),
                            fields=("webhook", "event"),
                            name="delivery_once_per_event",
                        ),
                        models.UniqueConstraint(
                            condition=models.Q(("person", None), _negated=True),
                            fields=("webhook", "person", "need"),
                            name="delivery_once_per_need",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Attempt",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("number", models.PositiveIntegerField()),
                    ("at", models.DateTimeField()),
                    ("ended_at", models.DateTimeField(blank=True, null=True)),
                    ("status_code", models.PositiveSmallIntegerField(blank=True, null=True)),
                    ("error", models.CharField(blank=True, max_length=500)),
                    ("snippet", models.CharField(blank=True, max_length=500)),
                    ("duration_ms", models.PositiveIntegerField(blank=True, null=True)),
                    (
                        "delivery",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="tries",
                            to="notifications.delivery",
                        ),
                    ),
                ],
                options={
                    "ordering": ["-number"],
                    "constraints": [models.UniqueConstraint(fields=("delivery", "number"), name="attempt_once")],
                },
            ),
        ),
    ]
