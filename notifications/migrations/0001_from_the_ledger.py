"""Webhooks, deliveries and attempts leave the ledger: their tables are renamed with everything on them, and keep their rows."""

import uuid

import django.db.models.deletion
from django.db import migrations, models

_TABLES = ["ledger_subscription", "ledger_delivery", "ledger_attempt"]
_JOB = ("ledger.notify", "notifications.dispatch")

# How to rename every constraint, index and sequence of a table. A primary key's or unique constraint's index is renamed with it.
_NAMES = """
SELECT 'ALTER TABLE {0} RENAME CONSTRAINT {1} TO {2}', conname FROM pg_constraint WHERE conrelid = %(table)s::regclass
UNION ALL
SELECT 'ALTER INDEX {1} RENAME TO {2}', relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE indrelid = %(table)s::regclass AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = indexrelid AND conrelid = indrelid)
UNION ALL
SELECT 'ALTER SEQUENCE {1} RENAME TO {2}', relname FROM pg_depend JOIN pg_class ON pg_class.oid = objid
WHERE refobjid = %(table)s::regclass AND relkind = 'S'
"""


def _new(name):
    return name.replace("ledger_", "notifications_").replace("subscription", "webhook")


def _old(name):
    return name.replace("notifications_", "ledger_").replace("webhook", "subscription")


def _rename(editor, tables, to):
    with editor.connection.cursor() as cursor:
        for table in tables:
            cursor.execute(_NAMES, {"table": table})
            for what, name in cursor.fetchall():
                if to(name) != name:
                    cursor.execute(what.format(*map(editor.quote_name, (table, name, to(name)))))
            cursor.execute(f"ALTER TABLE {table} RENAME TO {to(table)}")


def _rename_column(editor, table, before, after):
    with editor.connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME COLUMN {before} TO {after}")


def _rename_job(apps, before, after):
    apps.get_model("ledger", "Job").objects.filter(kind=before).update(kind=after)


def _take_over(apps, editor):
    _rename(editor, _TABLES, _new)
    _rename_column(editor, "notifications_delivery", "subscription_id", "webhook_id")
    _rename_job(apps, *_JOB)


def _give_back(apps, editor):
    _rename(editor, [_new(table) for table in _TABLES], _old)
    _rename_column(editor, "ledger_delivery", "webhook_id", "subscription_id")
    _rename_job(apps, *reversed(_JOB))


_MODELS = [
    migrations.CreateModel(
        name="Webhook",
        fields=[
            ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
            ("kind", models.CharField(choices=[("webhook", "webhook"), ("email", "email")], max_length=10)),
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
                "team",
                models.ForeignKey(
                    null=True, on_delete=django.db.models.deletion.CASCADE, related_name="webhooks", to="accounts.team"
                ),
            ),
        ],
        options={
            "ordering": ["pk"],
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
                "webhook",
                models.ForeignKey(
                    db_index=False,
                    on_delete=django.db.models.deletion.CASCADE,
                    related_name="deliveries",
                    to="notifications.webhook",
                ),
            ),
        ],
    ),
    migrations.CreateModel(
        name="Attempt",
        fields=[
            ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
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
    migrations.AddConstraint(
        model_name="webhook",
        constraint=models.CheckConstraint(
            condition=models.Q(("kind__in", ["webhook", "email"])), name="webhook_kind_known"
        ),
    ),
    migrations.AddConstraint(
        model_name="webhook",
        constraint=models.UniqueConstraint(
            fields=("team", "kind", "target"), name="webhook_once_per_target", nulls_distinct=False
        ),
    ),
    migrations.AddIndex(
        model_name="delivery",
        index=models.Index(
            condition=models.Q(("state__in", ["pending", "failed"])),
            fields=["webhook", "event"],
            include=("due_at",),
            name="delivery_next",
        ),
    ),
    migrations.AddIndex(
        model_name="delivery",
        index=models.Index(
            condition=models.Q(("state__in", ["pending", "failed"])), fields=["due_at"], name="delivery_due"
        ),
    ),
    migrations.AddIndex(
        model_name="delivery",
        index=models.Index(fields=["webhook", "-created_at"], name="delivery_newest"),
    ),
    migrations.AddIndex(
        model_name="delivery",
        index=models.Index(fields=["ended_at"], name="delivery_ended"),
    ),
    migrations.AddConstraint(
        model_name="delivery",
        constraint=models.CheckConstraint(
            condition=models.Q(("state__in", ["pending", "failed", "delivered", "gave_up"])),
            name="delivery_state_known",
        ),
    ),
    migrations.AddConstraint(
        model_name="delivery",
        constraint=models.UniqueConstraint(fields=("webhook", "event"), name="delivery_once_per_event"),
    ),
]


class Migration(migrations.Migration):
    dependencies = [("accounts", "0001_initial"), ("ledger", "0006_gate_run_verbs")]

    operations = [
        migrations.RunPython(_take_over, _give_back),
        migrations.SeparateDatabaseAndState(state_operations=_MODELS),
    ]
