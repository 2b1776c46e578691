from django.db import migrations, models
from django.db.models import F, Q

from ledger.migrations._together import Together

_GONE = (
    "credential",
    "credential_at",
    "credential_used_at",
    "joined_at",
    "joined_by",
    "rotation_asked_at",
    "revoked_at",
    "revoked_by",
    "revoke_reason",
    "cordoned_at",
    "cordoned_by",
    "cordon_reason",
    "version",
)


def fill(apps, schema_editor):
    """The newest change is the best that an older row knows."""
    apps.get_model("serving", "Route").objects.filter(stable_since=None).update(stable_since=F("changed_at"))


class Migration(migrations.Migration):
    replaces = [
        ("serving", "0028_route_stable_since"),
        ("serving", "0029_forced_door"),
        ("serving", "0030_no_prefetch"),
        ("serving", "0031_no_joining"),
        ("serving", "0032_static_servers"),
        ("serving", "0033_no_cordon"),
        ("serving", "0034_no_variants"),
    ]
    dependencies = [
        ("serving", "0001_squashed_0027_gateway_follows"),
    ]

    operations = [
        Together(
            migrations.AddField("route", "stable_since", models.DateTimeField(null=True)),
            migrations.AddField(
                model_name="environment",
                name="forced_key_number",
                field=models.PositiveIntegerField(db_default=0, default=0),
            ),
            migrations.AddField(
                model_name="route",
                name="refuses_forced",
                field=models.BooleanField(db_default=False, default=False),
            ),
            migrations.AddField(
                "environment", "platform", models.CharField(max_length=10, default="local", db_default="local")
            ),
            migrations.AddConstraint(
                "environment",
                models.CheckConstraint(
                    condition=Q(platform__in=["local", "static"]), name="environment_platform_known"
                ),
            ),
            migrations.CreateModel(
                "ListedServer",
                [
                    (
                        "node",
                        models.OneToOneField(
                            "serving.Node", models.CASCADE, primary_key=True, related_name="listing", serialize=False
                        ),
                    ),
                    (
                        "environment",
                        models.ForeignKey("serving.Environment", models.PROTECT, related_name="listed_servers"),
                    ),
                    ("host", models.CharField(max_length=120)),
                    ("http_port", models.PositiveIntegerField()),
                    ("grpc_port", models.PositiveIntegerField()),
                    ("kind", models.CharField(max_length=60, blank=True, default="")),
                    ("loads", models.CharField(max_length=300)),
                    ("runtime", models.CharField(max_length=300)),
                    ("listed_by", models.CharField(max_length=150)),
                    ("listed_at", models.DateTimeField()),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=["host", "http_port"], name="listed_server_once_over_http"),
                        models.UniqueConstraint(fields=["host", "grpc_port"], name="listed_server_once_over_grpc"),
                    ]
                },
            ),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
        migrations.RunSQL(
            "UPDATE serving_node SET removed_at = cordoned_at WHERE removed_at IS NULL AND cordoned_at IS NOT NULL",
            migrations.RunSQL.noop,
        ),
        Together(
            *(migrations.RemoveField("node", name) for name in _GONE),
            *(migrations.DeleteModel(name) for name in ("Prefetch", "NodeInvite", "Variant")),
        ),
    ]
