"""The tables of serving. Replaces the first 27 migrations: a database that applied them all skips this one."""

import django.db.models.deletion
from django.db import migrations, models

from ledger.migrations._together import Together


class Migration(migrations.Migration):
    replaces = [
        ("serving", "0001_initial"),
        ("serving", "0002_route_mirror"),
        ("serving", "0003_refuse_retired"),
        ("serving", "0004_attestation"),
        ("serving", "0005_route_changes"),
        ("serving", "0006_route_ack_taken"),
        ("serving", "0007_drift_checked_at"),
        ("serving", "0008_server_log"),
        ("serving", "0009_environment_version"),
        ("serving", "0010_node_cordon"),
        ("serving", "0011_request_example"),
        ("serving", "0012_draining_and_memory"),
        ("serving", "0013_server_reading"),
        ("serving", "0014_gpu_readings"),
        ("serving", "0015_variant"),
        ("serving", "0016_replicas"),
        ("serving", "0017_node_removed"),
        ("serving", "0018_failed_at"),
        ("serving", "0019_gateway_drained"),
        ("serving", "0020_deployment_set_aside"),
        ("serving", "0021_route_proven"),
        ("serving", "0022_prefetch"),
        ("serving", "0023_environment_retired"),
        ("serving", "0024_sleep"),
        ("serving", "0025_nodes_join"),
        ("serving", "0026_sleep_by_whom"),
        ("serving", "0027_gateway_follows"),
    ]

    initial = True

    dependencies = [
        ("registry", "0001_squashed_0015_traffic_policy"),
    ]

    operations = [
        Together(
            migrations.CreateModel(
                name="Environment",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("slug", models.SlugField(max_length=40, unique=True)),
                    ("title", models.CharField(max_length=120)),
                    ("is_routed", models.BooleanField(default=True)),
                    ("needs_passed_report", models.BooleanField(default=True)),
                    ("needs_approval", models.BooleanField(default=False)),
                    ("allows_forced_release", models.BooleanField(default=False)),
                    ("generation", models.BigIntegerField(default=0)),
                    ("version", models.PositiveIntegerField(default=1)),
                    ("retire_reason", models.TextField(blank=True, db_default="", default="")),
                    ("retired_at", models.DateTimeField(null=True)),
                    ("retired_by", models.CharField(blank=True, db_default="", default="", max_length=150)),
                ],
            ),
            migrations.CreateModel(
                name="Node",
                fields=[
                    ("name", models.SlugField(max_length=60, primary_key=True, serialize=False)),
                    ("runtimes", models.JSONField(default=list)),
                    ("facts", models.JSONField(default=dict)),
                    ("seen_at", models.DateTimeField(null=True)),
                    ("cordon_reason", models.TextField(blank=True)),
                    ("cordoned_at", models.DateTimeField(null=True)),
                    ("cordoned_by", models.CharField(blank=True, max_length=150)),
                    ("version", models.PositiveIntegerField(default=1)),
                    ("gpus", models.JSONField(default=dict)),
                    ("removed_at", models.DateTimeField(null=True)),
                    ("credential", models.CharField(blank=True, db_default="", default="", max_length=64)),
                    ("credential_at", models.DateTimeField(null=True)),
                    ("credential_used_at", models.DateTimeField(null=True)),
                    ("joined_at", models.DateTimeField(null=True)),
                    ("joined_by", models.CharField(blank=True, db_default="", default="", max_length=150)),
                    ("revoke_reason", models.TextField(blank=True, db_default="", default="")),
                    ("revoked_at", models.DateTimeField(null=True)),
                    ("revoked_by", models.CharField(blank=True, db_default="", default="", max_length=150)),
                    ("rotation_asked_at", models.DateTimeField(null=True)),
                ],
            ),
            migrations.CreateModel(
                name="NodeInvite",
                fields=[
                    ("name", models.SlugField(max_length=60, primary_key=True, serialize=False)),
                    ("sha256", models.CharField(max_length=64)),
                    ("invited_by", models.CharField(max_length=150)),
                    ("invited_at", models.DateTimeField()),
                    ("expires_at", models.DateTimeField()),
                    ("used_at", models.DateTimeField(null=True)),
                ],
            ),
            migrations.CreateModel(
                name="Gateway",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("name", models.CharField(max_length=80, unique=True)),
                    ("admin_url", models.URLField()),
                    ("http_url", models.URLField()),
                    ("grpc_address", models.CharField(max_length=120)),
                    ("seen_at", models.DateTimeField(null=True)),
                    ("drain_reason", models.TextField(blank=True)),
                    ("drained_at", models.DateTimeField(null=True)),
                    ("drained_by", models.CharField(blank=True, max_length=150)),
                    ("version", models.PositiveIntegerField(default=1)),
                    ("follows_at", models.DateTimeField(null=True)),
                    (
                        "environment",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="gateways",
                            to="serving.environment",
                        ),
                    ),
                ],
            ),
            migrations.CreateModel(
                name="Deployment",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("state", models.CharField(default="fetching", max_length=10)),
                    ("is_wanted", models.BooleanField(default=True)),
                    ("reason", models.TextField(blank=True)),
                    ("timings", models.JSONField(default=dict)),
                    ("recoveries", models.PositiveIntegerField(default=0)),
                    ("version", models.PositiveIntegerField(default=1)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    ("ready_at", models.DateTimeField(null=True)),
                    ("gone_at", models.DateTimeField(null=True)),
                    ("drain_asked_at", models.DateTimeField(null=True)),
                    ("drain_reason", models.TextField(blank=True)),
                    ("claim", models.JSONField(default=dict)),
                    ("slot", models.PositiveSmallIntegerField(default=0)),
                    ("failed_at", models.DateTimeField(null=True)),
                    ("is_set_aside", models.BooleanField(db_default=False, default=False)),
                    (
                        "release",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="deployments",
                            to="registry.release",
                        ),
                    ),
                    (
                        "environment",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="deployments",
                            to="serving.environment",
                        ),
                    ),
                    (
                        "node",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="deployments", to="serving.node"
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(
                                ("state__in", ["fetching", "loading", "warming", "ready", "draining", "failed", "gone"])
                            ),
                            name="deployment_state_known",
                        ),
                        models.UniqueConstraint(
                            condition=models.Q(
                                ("drain_asked_at", None),
                                ("is_wanted", True),
                                ("state__in", ["draining", "failed", "fetching", "loading", "ready", "warming"]),
                            ),
                            fields=("release", "environment", "slot"),
                            name="deployment_once_in_its_slot",
                        ),
                    ]
                },
            ),
            migrations.CreateModel(
                name="NodeGpuReading",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("at", models.DateTimeField()),
                    ("gpus", models.JSONField()),
                    (
                        "node",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="gpu_readings", to="serving.node"
                        ),
                    ),
                ],
                options={
                    "indexes": [
                        models.Index(fields=["node", "at"], name="gpu_reading_of_node"),
                        models.Index(fields=["at"], name="gpu_reading_by_age"),
                    ]
                },
            ),
            migrations.CreateModel(
                name="Prefetch",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("standing", models.CharField(max_length=8)),
                    ("size_bytes", models.BigIntegerField()),
                    ("here_bytes", models.BigIntegerField(default=0)),
                    ("trouble", models.TextField(blank=True)),
                    ("changed_at", models.DateTimeField()),
                    (
                        "node",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="prefetches", to="serving.node"
                        ),
                    ),
                    (
                        "release",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="prefetches",
                            to="registry.release",
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("node", "release"), name="prefetch_once"),
                        models.CheckConstraint(
                            condition=models.Q(("standing__in", ["waiting", "fetching", "ready", "failed", "no_room"])),
                            name="prefetch_standing_known",
                        ),
                    ]
                },
            ),
            migrations.CreateModel(
                name="Route",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("candidate_bp", models.PositiveIntegerField(default=0)),
                    ("generation", models.BigIntegerField(default=0)),
                    ("fence", models.BigIntegerField(default=0)),
                    ("changed_at", models.DateTimeField()),
                    ("mirror_bp", models.PositiveIntegerField(default=0)),
                    ("changes", models.PositiveIntegerField(default=0)),
                    ("proven", models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict)),
                    (
                        "candidate",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="registry.release",
                        ),
                    ),
                    (
                        "environment",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="routes", to="serving.environment"
                        ),
                    ),
                    (
                        "model",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="routes",
                            to="registry.servedmodel",
                        ),
                    ),
                    (
                        "stable",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="+", to="registry.release"
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("environment", "model"), name="route_once"),
                        models.CheckConstraint(
                            condition=models.Q(("candidate_bp__lte", 10000)), name="route_weight_in_range"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("candidate_bp", 0), ("candidate__isnull", False), _connector="OR"),
                            name="route_weight_has_candidate",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("candidate__isnull", True),
                                models.Q(("candidate", models.F("stable")), _negated=True),
                                _connector="OR",
                            ),
                            name="route_arms_differ",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("mirror_bp__lte", 10000)), name="route_mirror_in_range"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("mirror_bp", 0), ("candidate__isnull", False), _connector="OR"),
                            name="route_mirror_has_candidate",
                        ),
                    ]
                },
            ),
            migrations.CreateModel(
                name="RouteAck",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("generation", models.BigIntegerField()),
                    ("acked_at", models.DateTimeField()),
                    ("error", models.TextField(blank=True)),
                    ("taken", models.BigIntegerField(db_default=0)),
                    (
                        "gateway",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="acks", to="serving.gateway"
                        ),
                    ),
                    (
                        "route",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="acks", to="serving.route"
                        ),
                    ),
                ],
                options={"constraints": [models.UniqueConstraint(fields=("gateway", "route"), name="route_ack_once")]},
            ),
            migrations.CreateModel(
                name="Scale",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("replicas", models.PositiveSmallIntegerField()),
                    ("reason", models.TextField(blank=True)),
                    ("changed_by", models.CharField(max_length=150)),
                    ("changed_at", models.DateTimeField(auto_now=True)),
                    ("version", models.PositiveIntegerField(default=1)),
                    (
                        "environment",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="scales", to="serving.environment"
                        ),
                    ),
                    (
                        "release",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="scales", to="registry.release"
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("release", "environment"), name="scale_once"),
                        models.CheckConstraint(condition=models.Q(("replicas__gte", 1)), name="scale_has_a_replica"),
                    ]
                },
            ),
            migrations.CreateModel(
                name="Server",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("host", models.CharField(default="127.0.0.1", max_length=120)),
                    ("http_port", models.PositiveIntegerField()),
                    ("grpc_port", models.PositiveIntegerField()),
                    ("metrics_port", models.PositiveIntegerField()),
                    ("pid", models.PositiveIntegerField()),
                    ("folder", models.CharField(max_length=300)),
                    ("started_at", models.DateTimeField(auto_now_add=True)),
                    ("probed_at", models.DateTimeField(null=True)),
                    ("is_serving", models.BooleanField(default=False)),
                    ("ended_at", models.DateTimeField(null=True)),
                    ("end_reason", models.TextField(blank=True)),
                    ("drift", models.JSONField(default=list)),
                    ("drift_checked_at", models.DateTimeField(null=True)),
                    ("digest", models.CharField(blank=True, max_length=71)),
                    ("memory_at", models.DateTimeField(null=True)),
                    ("memory_bytes", models.BigIntegerField(null=True)),
                    ("exit_code", models.SmallIntegerField(null=True)),
                    (
                        "deployment",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="servers", to="serving.deployment"
                        ),
                    ),
                ],
            ),
            migrations.CreateModel(
                name="RequestExample",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("gateway", models.CharField(max_length=80)),
                    ("kind", models.CharField(max_length=6)),
                    ("at", models.DateTimeField()),
                    ("request_id", models.CharField(blank=True, max_length=100)),
                    ("took_ms", models.FloatField()),
                    ("http_status", models.PositiveIntegerField()),
                    ("grpc_status", models.PositiveIntegerField(null=True)),
                    ("tries", models.PositiveSmallIntegerField(default=1)),
                    ("flags", models.CharField(blank=True, max_length=30)),
                    ("address", models.CharField(blank=True, max_length=120)),
                    (
                        "candidate",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="+", to="registry.release"
                        ),
                    ),
                    (
                        "environment",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="+", to="serving.environment"
                        ),
                    ),
                    (
                        "release",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="+", to="registry.release"
                        ),
                    ),
                    (
                        "server",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.SET_NULL,
                            related_name="+",
                            to="serving.server",
                        ),
                    ),
                ],
                options={
                    "indexes": [
                        models.Index(
                            fields=["environment", "candidate", "release", "kind", "at"], name="request_example_by_arm"
                        )
                    ],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("kind__in", ["failed", "slow"])), name="request_example_kind_known"
                        )
                    ],
                },
            ),
            migrations.CreateModel(
                name="ServerLog",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("text", models.TextField()),
                    ("at", models.DateTimeField()),
                    (
                        "server",
                        models.OneToOneField(
                            on_delete=django.db.models.deletion.CASCADE, related_name="log", to="serving.server"
                        ),
                    ),
                ],
            ),
            migrations.CreateModel(
                name="ServerReading",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("at", models.DateTimeField()),
                    ("memory_bytes", models.BigIntegerField()),
                    ("own_bytes", models.BigIntegerField(null=True)),
                    ("shared_bytes", models.BigIntegerField(null=True)),
                    ("cpu_s", models.FloatField(null=True)),
                    ("open_files", models.PositiveIntegerField(null=True)),
                    ("gpu_memory_bytes", models.BigIntegerField(null=True)),
                    (
                        "server",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="readings", to="serving.server"
                        ),
                    ),
                ],
                options={
                    "indexes": [
                        models.Index(fields=["server", "at"], name="server_reading_of_server"),
                        models.Index(fields=["at"], name="server_reading_by_age"),
                    ]
                },
            ),
            migrations.CreateModel(
                name="Sleep",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("unload_after_s", models.PositiveIntegerField(null=True)),
                    ("yields_after_s", models.PositiveIntegerField(null=True)),
                    ("loads_on_demand", models.BooleanField(default=True)),
                    ("reason", models.TextField(blank=True)),
                    ("changed_by", models.CharField(blank=True, max_length=150)),
                    ("changed_at", models.DateTimeField(null=True)),
                    ("state", models.CharField(default="awake", max_length=6)),
                    ("state_since", models.DateTimeField(null=True)),
                    ("state_reason", models.TextField(blank=True)),
                    ("wake_s", models.PositiveIntegerField(default=0)),
                    ("trouble", models.TextField(blank=True)),
                    ("quiet_since", models.DateTimeField(null=True)),
                    ("counts", models.JSONField(default=dict)),
                    ("version", models.PositiveIntegerField(default=1)),
                    ("state_by", models.CharField(blank=True, db_default="", default="", max_length=150)),
                    (
                        "environment",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="sleeps", to="serving.environment"
                        ),
                    ),
                    (
                        "model",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="sleeps",
                            to="registry.servedmodel",
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("environment", "model"), name="sleep_once"),
                        models.CheckConstraint(
                            condition=models.Q(("state__in", ["awake", "asleep", "waking"])), name="sleep_state_known"
                        ),
                    ]
                },
            ),
            migrations.CreateModel(
                name="Variant",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("max_batch_size", models.PositiveIntegerField()),
                    ("max_queue_delay_us", models.PositiveIntegerField(null=True)),
                    ("until", models.DateTimeField()),
                    ("host", models.CharField(blank=True, max_length=120)),
                    ("http_port", models.PositiveIntegerField(default=0)),
                    ("grpc_port", models.PositiveIntegerField(default=0)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    ("ready_at", models.DateTimeField(null=True)),
                    ("ended_at", models.DateTimeField(null=True)),
                    ("end_reason", models.TextField(blank=True)),
                    (
                        "deployment",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="variants",
                            to="serving.deployment",
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(
                            condition=models.Q(("ended_at", None)),
                            fields=("deployment",),
                            name="variant_one_of_deployment",
                        )
                    ]
                },
            ),
        ),
        migrations.RunSQL(
            "CREATE TRIGGER serving_deployment_refuses_retired BEFORE INSERT ON serving_deployment FOR EACH ROW EXECUTE FUNCTION registry_refuse_retired('release_id');",
            "DROP TRIGGER serving_deployment_refuses_retired ON serving_deployment;",
        ),
        migrations.RunSQL(
            "CREATE TRIGGER serving_route_refuses_retired BEFORE INSERT OR UPDATE OF stable_id, candidate_id ON serving_route FOR EACH ROW EXECUTE FUNCTION registry_refuse_retired('stable_id', 'candidate_id');",
            "DROP TRIGGER serving_route_refuses_retired ON serving_route;",
        ),
    ]
