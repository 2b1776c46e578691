"""Files come in parts, straight to the store; a blob says whether its bytes are what it is."""

import uuid

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models import Q

import registry.core.uploads


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("registry", "0007_collection_and_aliases"),
    ]

    operations = [
        migrations.AddField(
            "blob",
            "state",
            models.CharField(max_length=12, default="verified"),
        ),
        migrations.AddField("blob", "problem", models.TextField(blank=True, default=""), preserve_default=False),
        migrations.AddField("blob", "part_size", models.BigIntegerField(null=True)),
        migrations.AddField("blob", "part_sha256", models.JSONField(default=list)),
        migrations.AddConstraint(
            "blob",
            models.CheckConstraint(condition=Q(("state__in", ["verified", "quarantined"])), name="blob_state_known"),
        ),
        migrations.CreateModel(
            name="Upload",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=uuid.uuid4)),
                ("path", models.CharField(max_length=300)),
                ("sha256", models.CharField(max_length=64)),
                ("size_bytes", models.BigIntegerField()),
                ("part_size", models.BigIntegerField()),
                ("state", models.CharField(max_length=12, default=registry.core.uploads.UploadState.OPEN)),
                ("problem", models.TextField(blank=True)),
                ("is_begun", models.BooleanField(default=False)),
                ("store_id", models.CharField(max_length=1024, blank=True)),
                ("is_stored", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField()),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "release",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="uploads",
                        to="registry.release",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(("state__in", ["open", "verifying", "verified", "quarantined", "aborted"])),
                        name="upload_state_known",
                    ),
                    models.UniqueConstraint(
                        fields=("release", "path"),
                        condition=Q(("state__in", ["open", "verifying"])),
                        name="upload_once_under_way",
                    ),
                ],
                "indexes": [
                    models.Index(
                        fields=["state", "expires_at"], condition=Q(("is_stored", True)), name="upload_to_sweep"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="UploadPart",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                ("sha256", models.CharField(max_length=64)),
                (
                    "upload",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="parts", to="registry.upload"
                    ),
                ),
            ],
            options={"constraints": [models.UniqueConstraint(fields=("upload", "number"), name="upload_part_once")]},
        ),
    ]
