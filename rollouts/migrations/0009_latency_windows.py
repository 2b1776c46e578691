"""How fast both arms answered, window by window: kept as it was counted."""

import django.db.models.deletion
from django.db import migrations, models

from ledger.core.triggers import refuse_change


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0008_decision_records")]

    operations = [
        migrations.CreateModel(
            name="LatencyWindow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("from_at", models.DateTimeField()),
                ("at", models.DateTimeField()),
                ("candidate", models.JSONField()),
                ("stable", models.JSONField()),
                (
                    "rollout",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="latency_windows",
                        to="rollouts.rollout",
                    ),
                ),
            ],
            options={"indexes": [models.Index(fields=["rollout", "at"], name="latency_by_rollout")]},
        ),
        migrations.RunSQL(
            *refuse_change(
                "rollouts_latencywindow", message="windows of latency are append-only; write a new row instead"
            )
        ),
    ]
