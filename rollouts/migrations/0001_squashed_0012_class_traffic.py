"""The tables of rollouts. Replaces the first 12 migrations: a database that applied them all skips this one."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from ledger.core.triggers import refuse_change
from ledger.migrations._together import Together

DECISION_REFUSES_TRUNCATE = """
CREATE FUNCTION rollouts_decision_refuses_truncate()
 RETURNS trigger
 LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'the record of a rollout is never deleted' USING ERRCODE = '23000';
END $$;
CREATE TRIGGER rollouts_decision_refuses_truncate_all BEFORE TRUNCATE ON rollouts_decisionrecord FOR EACH STATEMENT EXECUTE FUNCTION rollouts_decision_refuses_truncate();
"""
DECISION_REFUSES_UPDATE_DELETE = """
CREATE FUNCTION rollouts_decision_refuses_update_delete()
 RETURNS trigger
 LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'decisions are append-only; write a new row instead' USING ERRCODE = '23000';
END $$;
CREATE TRIGGER rollouts_decision_refuses_update_delete BEFORE DELETE OR UPDATE ON rollouts_decisionrecord FOR EACH ROW EXECUTE FUNCTION rollouts_decision_refuses_update_delete();
"""
OBSERVATION_STAYS_COVERED = """
CREATE FUNCTION rollouts_observation_stays_covered()
 RETURNS trigger
 LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM rollouts_observation o WHERE o.rollout_id = OLD.rollout_id AND o.id <> OLD.id
                   AND o.first_tick <= OLD.first_tick AND o.tick >= OLD.tick
                   AND o.tick - o.first_tick > OLD.tick - OLD.first_tick) THEN
        RAISE EXCEPTION 'an observation is only replaced by a coarser one that covers its ticks' USING ERRCODE = '23000';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER rollouts_observation_stays_covered BEFORE DELETE ON rollouts_observation FOR EACH ROW EXECUTE FUNCTION rollouts_observation_stays_covered();
"""


class Migration(migrations.Migration):
    replaces = [
        ("rollouts", "0001_initial"),
        ("rollouts", "0002_records_are_final"),
        ("rollouts", "0003_no_truncate"),
        ("rollouts", "0004_evidence_in_full"),
        ("rollouts", "0005_refuse_retired"),
        ("rollouts", "0006_reverted"),
        ("rollouts", "0007_standard_words"),
        ("rollouts", "0008_decision_records"),
        ("rollouts", "0009_latency_windows"),
        ("rollouts", "0010_recent_traffic"),
        ("rollouts", "0011_tenant_traffic"),
        ("rollouts", "0012_class_traffic"),
    ]

    initial = True

    dependencies = [
        ("registry", "0001_squashed_0015_traffic_policy"),
        ("serving", "0001_squashed_0027_gateway_follows"),
        ("validators", "0001_squashed_0010_trace_removal"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        Together(
            migrations.CreateModel(
                name="Rollout",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("policy", models.JSONField()),
                    ("policy_digest", models.CharField(max_length=71)),
                    ("state", models.CharField(max_length=20)),
                    ("resume_state", models.CharField(blank=True, max_length=20)),
                    ("step_index", models.IntegerField(default=-1)),
                    ("weight_bp", models.PositiveIntegerField(default=0)),
                    ("observed_bp", models.PositiveIntegerField(null=True)),
                    ("reason", models.TextField(blank=True)),
                    ("engine_state", models.JSONField(default=dict)),
                    ("tick", models.BigIntegerField(default=0)),
                    ("fence", models.BigIntegerField(default=0)),
                    ("version", models.PositiveIntegerField(default=1)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    ("started_at", models.DateTimeField(null=True)),
                    ("step_started_at", models.DateTimeField(null=True)),
                    ("due_at", models.DateTimeField(null=True)),
                    ("ended_at", models.DateTimeField(null=True)),
                    ("first_bad_at", models.DateTimeField(null=True)),
                    ("decided_at", models.DateTimeField(null=True)),
                    ("zero_at", models.DateTimeField(null=True)),
                    ("confirmed_at", models.DateTimeField(null=True)),
                    ("mirror_bp", models.PositiveIntegerField(default=0)),
                    ("promote_now", models.BooleanField(default=False)),
                    ("undo_until", models.DateTimeField(null=True)),
                    (
                        "candidate",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="rollouts", to="registry.release"
                        ),
                    ),
                    (
                        "environment",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="rollouts",
                            to="serving.environment",
                        ),
                    ),
                    (
                        "model",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="rollouts",
                            to="registry.servedmodel",
                        ),
                    ),
                    (
                        "report",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="validators.report",
                        ),
                    ),
                    (
                        "requested_by",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.SET_NULL,
                            related_name="+",
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                    (
                        "stable",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="registry.release",
                        ),
                    ),
                    (
                        "supersedes",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="superseded_by",
                            to="rollouts.rollout",
                        ),
                    ),
                ],
                options={
                    "ordering": ["-id"],
                    "indexes": [models.Index(fields=["state"], name="rollout_by_state")],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(
                                (
                                    "state__in",
                                    [
                                        "awaiting_approval",
                                        "preparing",
                                        "shadowing",
                                        "shifting",
                                        "paused",
                                        "baking",
                                        "promoted",
                                        "reverted",
                                        "rolling_back",
                                        "rolled_back",
                                        "stuck",
                                        "rejected",
                                        "cancelled",
                                        "superseded",
                                    ],
                                )
                            ),
                            name="rollout_state_known",
                        ),
                        models.UniqueConstraint(
                            condition=models.Q(
                                (
                                    "state__in",
                                    [
                                        "awaiting_approval",
                                        "baking",
                                        "paused",
                                        "preparing",
                                        "rolling_back",
                                        "shadowing",
                                        "shifting",
                                        "stuck",
                                    ],
                                )
                            ),
                            fields=("environment", "model"),
                            name="rollout_one_active",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="ProbeTally",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("guard", models.CharField(max_length=60)),
                    ("epoch", models.CharField(max_length=60)),
                    ("candidate_attempts", models.BigIntegerField(default=0)),
                    ("candidate_bad", models.BigIntegerField(default=0)),
                    ("stable_attempts", models.BigIntegerField(default=0)),
                    ("stable_bad", models.BigIntegerField(default=0)),
                    ("at", models.DateTimeField()),
                    (
                        "rollout",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="tallies", to="rollouts.rollout"
                        ),
                    ),
                ],
                options={"constraints": [models.UniqueConstraint(fields=("rollout", "guard"), name="tally_once")]},
            ),
            migrations.CreateModel(
                name="Observation",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("tick", models.BigIntegerField()),
                    ("at", models.DateTimeField()),
                    ("weight_bp", models.PositiveIntegerField()),
                    ("candidate", models.JSONField()),
                    ("stable", models.JSONField()),
                    ("evidence", models.JSONField()),
                    ("problem", models.CharField(blank=True, max_length=60)),
                    ("first_tick", models.BigIntegerField()),
                    ("from_at", models.DateTimeField()),
                    ("state", models.CharField(max_length=20)),
                    ("ticks", models.JSONField(default=list)),
                    (
                        "rollout",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="observations",
                            to="rollouts.rollout",
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("rollout", "first_tick", "tick"), name="observation_once")
                    ]
                },
            ),
            migrations.CreateModel(
                name="Mismatch",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("at", models.DateTimeField()),
                    ("source", models.CharField(max_length=10)),
                    ("summary", models.TextField()),
                    ("facts", models.JSONField(default=dict)),
                    (
                        "rollout",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="mismatches",
                            to="rollouts.rollout",
                        ),
                    ),
                ],
            ),
            migrations.CreateModel(
                name="LatencyWindow",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
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
            migrations.CreateModel(
                name="DecisionRecord",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("at", models.DateTimeField()),
                    ("tick", models.BigIntegerField(default=0)),
                    ("action", models.CharField(max_length=30)),
                    ("reason", models.TextField()),
                    ("code", models.CharField(blank=True, max_length=40)),
                    ("actor", models.CharField(max_length=150)),
                    ("facts", models.JSONField(default=dict)),
                    (
                        "rollout",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="decisions", to="rollouts.rollout"
                        ),
                    ),
                ],
            ),
            migrations.CreateModel(
                name="Approval",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("manifest_digest", models.CharField(max_length=71)),
                    ("report_digest", models.CharField(blank=True, max_length=71)),
                    ("policy_digest", models.CharField(max_length=71)),
                    ("step_index", models.IntegerField(default=-1)),
                    ("comment", models.TextField(blank=True)),
                    ("at", models.DateTimeField(auto_now_add=True)),
                    ("expires_at", models.DateTimeField(null=True)),
                    ("stage", models.CharField(default="start", max_length=20)),
                    (
                        "approver",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                        ),
                    ),
                    (
                        "rollout",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="approvals", to="rollouts.rollout"
                        ),
                    ),
                ],
                options={"indexes": [models.Index(fields=["rollout", "stage"], name="approval_by_stage")]},
            ),
            migrations.CreateModel(
                name="AATestRecord",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("state", models.JSONField(default=dict)),
                    ("at", models.DateTimeField()),
                    ("alarmed_at", models.DateTimeField(null=True)),
                    ("traffic", models.JSONField(default=dict)),
                    ("tenants", models.JSONField(default=dict)),
                    ("classes", models.JSONField(default=dict)),
                    (
                        "environment",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="self_tests",
                            to="serving.environment",
                        ),
                    ),
                    (
                        "model",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="self_tests",
                            to="registry.servedmodel",
                        ),
                    ),
                ],
                options={
                    "constraints": [models.UniqueConstraint(fields=("environment", "model"), name="self_test_once")],
                },
            ),
        ),
        migrations.RunSQL(
            *refuse_change(
                "rollouts_approval", operations=("TRUNCATE",), message="the record of a rollout is never deleted"
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "rollouts_approval",
                operations=("UPDATE", "DELETE"),
                message="approvals are append-only; write a new row instead",
            )
        ),
        migrations.RunSQL(DECISION_REFUSES_TRUNCATE, "DROP FUNCTION rollouts_decision_refuses_truncate CASCADE;"),
        migrations.RunSQL(
            DECISION_REFUSES_UPDATE_DELETE, "DROP FUNCTION rollouts_decision_refuses_update_delete CASCADE;"
        ),
        migrations.RunSQL(
            *refuse_change(
                "rollouts_latencywindow",
                operations=("UPDATE", "DELETE"),
                message="windows of latency are append-only; write a new row instead",
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "rollouts_observation", operations=("TRUNCATE",), message="the record of a rollout is never deleted"
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "rollouts_observation",
                operations=("UPDATE",),
                message="observations are append-only; write a new row instead",
            )
        ),
        migrations.RunSQL(OBSERVATION_STAYS_COVERED, "DROP FUNCTION rollouts_observation_stays_covered CASCADE;"),
        migrations.RunSQL(
            *refuse_change(
                "rollouts_rollout", operations=("TRUNCATE",), message="the record of a rollout is never deleted"
            )
        ),
        migrations.RunSQL(
            "CREATE TRIGGER rollouts_rollout_refuses_retired BEFORE INSERT ON rollouts_rollout FOR EACH ROW EXECUTE FUNCTION registry_refuse_retired('candidate_id', 'stable_id');",
            "DROP TRIGGER rollouts_rollout_refuses_retired ON rollouts_rollout;",
        ),
    ]
