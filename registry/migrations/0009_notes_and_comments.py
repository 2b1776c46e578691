"""Notes on releases and comments on their comparisons, which the database keeps as they were written."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from ledger.core.triggers import refuse_change

NOTE = "a note is never deleted or changed; write another version"
COMMENT = "a comment is never deleted, and changed only to resolve it once"
_AS_WRITTEN = (
    "OLD.resolved_at IS NOT NULL OR (NEW.release_id, NEW.digest, NEW.against_digest, NEW.section, NEW.path, NEW.side, NEW.line, "
    "NEW.text, NEW.written_by, NEW.at) IS DISTINCT FROM (OLD.release_id, OLD.digest, OLD.against_digest, OLD.section, OLD.path, "
    "OLD.side, OLD.line, OLD.text, OLD.written_by, OLD.at)"
)


class Migration(migrations.Migration):
    dependencies = [
        ("registry", "0008_uploads"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="ReleaseNote",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField()),
                ("text", models.TextField(blank=True)),
                ("tags", models.JSONField(default=list)),
                ("written_by", models.CharField(max_length=150)),
                ("at", models.DateTimeField()),
                (
                    "author",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "release",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="notes", to="registry.release"
                    ),
                ),
            ],
            options={
                "ordering": ["-version"],
                "constraints": [models.UniqueConstraint(fields=("release", "version"), name="release_note_once")],
            },
        ),
        migrations.CreateModel(
            name="ReviewComment",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("digest", models.CharField(max_length=71)),
                ("against_digest", models.CharField(blank=True, max_length=71)),
                ("section", models.CharField(max_length=20)),
                ("path", models.CharField(blank=True, max_length=300)),
                ("side", models.CharField(default="new", max_length=3)),
                ("line", models.PositiveIntegerField(null=True)),
                ("text", models.TextField()),
                ("written_by", models.CharField(max_length=150)),
                ("at", models.DateTimeField()),
                ("resolved_by", models.CharField(blank=True, max_length=150)),
                ("resolved_at", models.DateTimeField(null=True)),
                (
                    "against",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="registry.release"
                    ),
                ),
                (
                    "author",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "release",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="comments", to="registry.release"
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["release", "-id"], name="review_comment_newest_first")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("side__in", ["old", "new"])), name="review_comment_side_known"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("resolved_at__isnull", True), ("resolved_by", "")),
                            models.Q(("resolved_at__isnull", False), models.Q(("resolved_by", ""), _negated=True)),
                            _connector="OR",
                        ),
                        name="review_comment_resolved_whole",
                    ),
                ],
            },
        ),
        migrations.RunSQL(*refuse_change("registry_releasenote", message=NOTE)),
        migrations.RunSQL(*refuse_change("registry_releasenote", operations=("TRUNCATE",), message=NOTE)),
        migrations.RunSQL(
            *refuse_change("registry_reviewcomment", operations=("UPDATE",), when=_AS_WRITTEN, message=COMMENT)
        ),
        migrations.RunSQL(*refuse_change("registry_reviewcomment", operations=("DELETE", "TRUNCATE"), message=COMMENT)),
    ]
