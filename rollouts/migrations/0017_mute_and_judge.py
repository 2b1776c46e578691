import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from ledger.migrations._together import Together


class Migration(migrations.Migration):
    dependencies = [
        ("registry", "0002_diet"),
        ("rollouts", "0013_squashed_0015_diet"),
        ("serving", "0037_series"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        Together(
            migrations.CreateModel(
                name="Alarm",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("objective", models.CharField(max_length=60)),
                    ("tier", models.CharField(max_length=10)),
                    ("state", models.CharField(default="open", max_length=20)),
                    ("reason", models.TextField()),
                    ("facts", models.JSONField(default=dict)),
                    ("opened_at", models.DateTimeField()),
                    ("acknowledged_at", models.DateTimeField(null=True)),
                    ("closed_at", models.DateTimeField(null=True)),
                    ("closed_by", models.CharField(blank=True, max_length=150)),
                    ("version", models.PositiveIntegerField(default=1)),
                    (
                        "acknowledged_by",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.SET_NULL,
                            related_name="+",
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                    (
                        "environment",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="+", to="serving.environment"
                        ),
                    ),
                    (
                        "model",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="alarms",
                            to="registry.servedmodel",
                        ),
                    ),
                    (
                        "release",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="+", to="registry.release"
                        ),
                    ),
                    ("muted_by", models.CharField(blank=True, db_default="", max_length=150)),
                    ("muted_until", models.DateTimeField(null=True)),
                ],
                options={
                    "ordering": ["-id"],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("state__in", ["open", "acknowledged", "closed"])),
                            name="alarm_state_known",
                        ),
                        models.UniqueConstraint(
                            condition=models.Q(("state", "closed"), _negated=True),
                            fields=("environment", "model", "objective", "tier"),
                            name="alarm_one_live",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="WatchRecord",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("objectives", models.JSONField(default=dict)),
                    ("at", models.DateTimeField()),
                    (
                        "environment",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="+", to="serving.environment"
                        ),
                    ),
                    (
                        "model",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="+", to="registry.servedmodel"
                        ),
                    ),
                ],
                options={
                    "constraints": [models.UniqueConstraint(fields=("environment", "model"), name="watch_once")],
                },
            ),
            migrations.CreateModel(
                name="JudgementWindow",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("key", models.CharField(max_length=200)),
                    ("question", models.CharField(max_length=71)),
                    ("began_at", models.DateTimeField()),
                    (
                        "user",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                        ),
                    ),
                ],
                options={
                    "constraints": [models.UniqueConstraint(fields=("user", "key"), name="judgement_window_once")],
                },
            ),
        ),
    ]
