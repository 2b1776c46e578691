from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("serving", "0031_no_joining")]

    operations = [
        migrations.AddField(
            "environment", "platform", models.CharField(max_length=10, default="local", db_default="local")
        ),
        migrations.AddConstraint(
            "environment",
            models.CheckConstraint(condition=Q(platform__in=["local", "static"]), name="environment_platform_known"),
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
    ]
