"""The tables of ledger. Replaces the first 8 migrations: a database that applied them all skips this one."""

import uuid

import django.db.models.fields.json
import django.db.models.functions.text
from django.db import migrations, models

from ledger.core.triggers import refuse_change
from ledger.core.words import INDEXED
from ledger.migrations._together import Together

# Without a list of pending entries: its flush would hold up the writer that meets it.
WORDS = f"CREATE INDEX event_words ON ledger_event USING gin (({INDEXED})) WITH (fastupdate = off)"


class Migration(migrations.Migration):
    replaces = [
        ("ledger", "0001_initial"),
        ("ledger", "0002_chain_head_and_sent_at"),
        ("ledger", "0003_events_are_final"),
        ("ledger", "0004_outbox"),
        ("ledger", "0005_verbs_and_jobs"),
        ("ledger", "0006_gate_run_verbs"),
        ("ledger", "0007_webhooks_left"),
        ("ledger", "0008_event_search"),
    ]

    initial = True

    dependencies = []

    operations = [
        Together(
            migrations.CreateModel(
                name="Lease",
                fields=[
                    ("name", models.CharField(max_length=60, primary_key=True, serialize=False)),
                    ("owner", models.CharField(blank=True, max_length=120)),
                    ("token", models.BigIntegerField(default=0)),
                    ("expires_at", models.DateTimeField(blank=True, null=True)),
                ],
            ),
            migrations.CreateModel(
                name="ChainHead",
                fields=[
                    ("id", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                    ("seq", models.BigIntegerField()),
                    ("hash", models.CharField(max_length=64)),
                ],
                options={
                    "constraints": [models.CheckConstraint(condition=models.Q(("id", 1)), name="chain_has_one_head")],
                },
            ),
            migrations.CreateModel(
                name="Event",
                fields=[
                    ("seq", models.BigAutoField(primary_key=True, serialize=False)),
                    ("at", models.DateTimeField()),
                    ("act_id", models.UUIDField(default=uuid.uuid4)),
                    ("verb", models.CharField(max_length=60)),
                    ("subject_type", models.CharField(max_length=30)),
                    ("subject_id", models.CharField(max_length=120)),
                    ("actor", models.CharField(max_length=150)),
                    ("from_state", models.CharField(blank=True, max_length=30)),
                    ("to_state", models.CharField(blank=True, max_length=30)),
                    ("reason", models.TextField(blank=True)),
                    ("facts", models.JSONField(default=dict)),
                    ("prev_hash", models.CharField(max_length=64)),
                    ("hash", models.CharField(max_length=64, unique=True)),
                    (
                        "model",
                        models.GeneratedField(
                            db_persist=True,
                            expression=models.Case(
                                models.When(
                                    subject_type="model",
                                    then=django.db.models.functions.text.Left(models.F("subject_id"), 120),
                                ),
                                default=django.db.models.functions.text.Left(
                                    django.db.models.fields.json.KeyTextTransform("model", "facts"), 120
                                ),
                                output_field=models.TextField(),
                            ),
                            output_field=models.TextField(),
                        ),
                    ),
                ],
                options={
                    "ordering": ["seq"],
                    "indexes": [
                        models.Index(fields=["subject_type", "subject_id", "-seq"], name="event_by_subject"),
                        models.Index(fields=["model", "-seq"], name="event_by_model"),
                        models.Index(fields=["actor", "-seq"], name="event_by_actor"),
                        models.Index(fields=["verb", "-seq"], name="event_by_verb"),
                        models.Index(fields=["at"], name="event_by_time"),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Job",
                fields=[
                    ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                    ("kind", models.CharField(max_length=60)),
                    ("key", models.CharField(max_length=120)),
                    ("queue", models.CharField(default="default", max_length=60)),
                    ("args", models.JSONField(default=dict)),
                    (
                        "state",
                        models.CharField(
                            choices=[
                                ("queued", "queued"),
                                ("running", "running"),
                                ("done", "done"),
                                ("failed", "failed"),
                            ],
                            default="queued",
                            max_length=10,
                        ),
                    ),
                    ("owner", models.CharField(blank=True, max_length=120)),
                    ("lease_until", models.DateTimeField(blank=True, null=True)),
                    ("attempts", models.PositiveIntegerField(default=0)),
                    ("max_attempts", models.PositiveIntegerField(default=3)),
                    ("due_at", models.DateTimeField()),
                    ("progress_done", models.PositiveIntegerField(default=0)),
                    ("progress_total", models.PositiveIntegerField(default=0)),
                    ("progress_note", models.CharField(blank=True, max_length=300)),
                    ("error", models.TextField(blank=True)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    ("finished_at", models.DateTimeField(blank=True, null=True)),
                    ("sent_at", models.DateTimeField(blank=True, null=True)),
                ],
                options={
                    "indexes": [models.Index(fields=["state", "lease_until", "due_at"], name="job_due")],
                    "constraints": [
                        models.UniqueConstraint(
                            condition=models.Q(("state__in", ["queued", "running"])),
                            fields=("kind", "key"),
                            name="job_once_unfinished",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("state__in", ["queued", "running", "done", "failed"])),
                            name="job_state_known",
                        ),
                    ],
                },
            ),
        ),
        migrations.RunSQL(
            *refuse_change(
                "ledger_chainhead", operations=("DELETE", "TRUNCATE"), message="the head of the log is never deleted"
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "ledger_event",
                operations=("UPDATE", "DELETE", "TRUNCATE"),
                message="events are never changed or deleted; append a new one that corrects it",
            )
        ),
        migrations.RunSQL(WORDS, "DROP INDEX event_words"),
    ]
