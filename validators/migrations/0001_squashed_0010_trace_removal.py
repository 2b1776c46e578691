"""The tables of validators. Replaces the first 10 migrations: a database that applied them all skips this one."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from ledger.core.triggers import refuse_change
from ledger.migrations._together import Together

GATERUN_IS_FINAL = """
CREATE FUNCTION validators_gaterun_is_final()
 RETURNS trigger
 LANGUAGE plpgsql
AS $$
BEGIN
    IF OLD.verdict <> '' THEN
        RAISE EXCEPTION 'gate run % has a verdict and cannot be changed; run the gates again', OLD.id
            USING ERRCODE = '23000';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER validators_gaterun_is_final BEFORE DELETE OR UPDATE ON validators_gateresult FOR EACH ROW EXECUTE FUNCTION validators_gaterun_is_final();
"""
GATERUN_REFUSES_TRUNCATE = """
CREATE FUNCTION validators_gaterun_refuses_truncate()
 RETURNS trigger
 LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'evidence is never deleted; run the gates again' USING ERRCODE = '23000';
END $$;
CREATE TRIGGER validators_gaterun_refuses_truncate_all BEFORE TRUNCATE ON validators_gateresult FOR EACH STATEMENT EXECUTE FUNCTION validators_gaterun_refuses_truncate();
"""
GOLDENSET_IS_FINAL = """
CREATE FUNCTION validators_goldenset_is_final()
 RETURNS trigger
 LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND to_jsonb(NEW) - 'created_by_id' = to_jsonb(OLD) - 'created_by_id' THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'golden set % cannot be changed; add another one', OLD.digest USING ERRCODE = '23000';
END $$;
CREATE TRIGGER validators_goldenset_is_final BEFORE DELETE OR UPDATE ON validators_goldenset FOR EACH ROW EXECUTE FUNCTION validators_goldenset_is_final();
"""
REPORT_IS_FINAL = """
CREATE FUNCTION validators_report_is_final()
 RETURNS trigger
 LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'report % is sealed and cannot be changed; run the gates again', OLD.id USING ERRCODE = '23000';
END $$;
CREATE TRIGGER validators_report_is_final BEFORE DELETE OR UPDATE ON validators_report FOR EACH ROW EXECUTE FUNCTION validators_report_is_final();
"""
TRACE_REFUSES_DELETE_OF_EVIDENCE = """
CREATE FUNCTION validators_trace_refuses_delete_of_evidence()
 RETURNS trigger
 LANGUAGE plpgsql
AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM validators_gaterun run JOIN registry_release release ON release.id = run.release_id
        WHERE release.model_id = OLD.model_id AND run.policy #>> '{load,trace}' = OLD.digest
    ) THEN
        RAISE EXCEPTION 'a gate run went by this trace, which is its evidence' USING ERRCODE = '23000';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER validators_trace_refuses_delete_of_evidence BEFORE DELETE ON validators_trace FOR EACH ROW EXECUTE FUNCTION validators_trace_refuses_delete_of_evidence();
"""


class Migration(migrations.Migration):
    replaces = [
        ("validators", "0001_initial"),
        ("validators", "0002_evidence_is_final"),
        ("validators", "0003_no_truncate"),
        ("validators", "0004_gate_runs"),
        ("validators", "0005_measurement"),
        ("validators", "0006_where_measured"),
        ("validators", "0007_kept_requests"),
        ("validators", "0008_seen_sizes"),
        ("validators", "0009_traces"),
        ("validators", "0010_trace_removal"),
    ]

    initial = True

    dependencies = [
        ("registry", "0001_squashed_0015_traffic_policy"),
        ("serving", "0001_squashed_0027_gateway_follows"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        Together(
            migrations.CreateModel(
                name="GateRun",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("policy", models.JSONField()),
                    ("policy_digest", models.CharField(max_length=71)),
                    ("state", models.CharField(default="queued", max_length=10)),
                    ("verdict", models.CharField(blank=True, max_length=10)),
                    ("reason", models.TextField(blank=True)),
                    ("requested_by", models.CharField(max_length=150)),
                    ("version", models.PositiveIntegerField(default=1)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    ("started_at", models.DateTimeField(null=True)),
                    ("ended_at", models.DateTimeField(null=True)),
                    (
                        "baseline",
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
                            on_delete=django.db.models.deletion.PROTECT, related_name="+", to="serving.environment"
                        ),
                    ),
                    (
                        "release",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="gate_runs", to="registry.release"
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("state__in", ["queued", "running", "finished", "cancelled"])),
                            name="gate_run_state_known",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("verdict__in", ["", "passed", "skipped", "undecided", "errored", "failed"])
                            ),
                            name="gate_run_verdict_known",
                        ),
                        models.UniqueConstraint(
                            condition=models.Q(("state__in", ["queued", "running"])),
                            fields=("release",),
                            name="gate_run_once_running",
                        ),
                    ]
                },
            ),
            migrations.CreateModel(
                name="GoldenSet",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("digest", models.CharField(max_length=71)),
                    ("items", models.PositiveIntegerField()),
                    ("slices", models.JSONField(default=dict)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    (
                        "blob",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="+", to="registry.blob"
                        ),
                    ),
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
                        "model",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="golden_sets",
                            to="registry.servedmodel",
                        ),
                    ),
                ],
                options={"constraints": [models.UniqueConstraint(fields=("model", "digest"), name="golden_set_once")]},
            ),
            migrations.CreateModel(
                name="KeptRequest",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("release", models.CharField(max_length=20)),
                    ("inputs", models.JSONField()),
                    ("answers", models.JSONField()),
                    ("digest", models.CharField(max_length=71)),
                    ("rank", models.BigIntegerField()),
                    ("size_bytes", models.PositiveIntegerField()),
                    ("at", models.DateTimeField()),
                    (
                        "model",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="kept_requests",
                            to="registry.servedmodel",
                        ),
                    ),
                ],
                options={
                    "constraints": [models.UniqueConstraint(fields=("model", "digest"), name="kept_request_once")]
                },
            ),
            migrations.CreateModel(
                name="Report",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("manifest_digest", models.CharField(max_length=71)),
                    ("policy_digest", models.CharField(max_length=71)),
                    ("verdict", models.CharField(max_length=10)),
                    ("body", models.TextField()),
                    ("digest", models.CharField(max_length=71, unique=True)),
                    ("signature", models.TextField()),
                    ("key_id", models.CharField(max_length=71)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    (
                        "gate_run",
                        models.OneToOneField(
                            on_delete=django.db.models.deletion.PROTECT, related_name="report", to="validators.gaterun"
                        ),
                    ),
                    (
                        "release",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="reports", to="registry.release"
                        ),
                    ),
                ],
            ),
            migrations.CreateModel(
                name="Measurement",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("gate", models.CharField(max_length=30)),
                    ("name", models.CharField(max_length=60)),
                    ("unit", models.CharField(max_length=10)),
                    ("value", models.FloatField()),
                    (
                        "report",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="measurements",
                            to="validators.report",
                        ),
                    ),
                ],
                options={
                    "constraints": [models.UniqueConstraint(fields=("report", "gate", "name"), name="measurement_once")]
                },
            ),
            migrations.CreateModel(
                name="GateResult",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("gate", models.CharField(max_length=30)),
                    ("position", models.PositiveIntegerField()),
                    ("verdict", models.CharField(blank=True, max_length=10)),
                    ("reason", models.TextField(blank=True)),
                    ("evidence", models.JSONField(default=dict)),
                    ("progress_done", models.PositiveIntegerField(default=0)),
                    ("progress_total", models.PositiveIntegerField(default=0)),
                    ("started_at", models.DateTimeField(null=True)),
                    ("ended_at", models.DateTimeField(null=True)),
                    ("measured", models.JSONField(default=dict)),
                    (
                        "gate_run",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="results", to="validators.gaterun"
                        ),
                    ),
                    (
                        "reused_from",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="validators.report",
                        ),
                    ),
                ],
                options={
                    "ordering": ["position"],
                    "constraints": [
                        models.UniqueConstraint(fields=("gate_run", "gate"), name="gate_result_once"),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("verdict__in", ["", "passed", "skipped", "undecided", "errored", "failed"])
                            ),
                            name="gate_result_verdict_known",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="SeenSizesRecord",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("counts", models.JSONField()),
                    ("requests", models.PositiveBigIntegerField()),
                    ("since_at", models.DateTimeField()),
                    ("until_at", models.DateTimeField()),
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
                    "constraints": [models.UniqueConstraint(fields=("model", "environment"), name="seen_sizes_once")]
                },
            ),
            migrations.CreateModel(
                name="Trace",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("digest", models.CharField(max_length=71)),
                    ("gaps", models.PositiveIntegerField()),
                    ("lasts_s", models.FloatField()),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    (
                        "blob",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="+", to="registry.blob"
                        ),
                    ),
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
                        "model",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="traces",
                            to="registry.servedmodel",
                        ),
                    ),
                ],
                options={"constraints": [models.UniqueConstraint(fields=("model", "digest"), name="trace_once")]},
            ),
        ),
        migrations.RunSQL(GATERUN_IS_FINAL, "DROP FUNCTION validators_gaterun_is_final CASCADE;"),
        migrations.RunSQL(GATERUN_REFUSES_TRUNCATE, "DROP FUNCTION validators_gaterun_refuses_truncate CASCADE;"),
        migrations.RunSQL(GOLDENSET_IS_FINAL, "DROP FUNCTION validators_goldenset_is_final CASCADE;"),
        migrations.RunSQL(
            *refuse_change(
                "validators_goldenset",
                operations=("TRUNCATE",),
                message="evidence is never deleted; run the gates again",
            )
        ),
        migrations.RunSQL(REPORT_IS_FINAL, "DROP FUNCTION validators_report_is_final CASCADE;"),
        migrations.RunSQL(
            *refuse_change(
                "validators_report", operations=("TRUNCATE",), message="evidence is never deleted; run the gates again"
            )
        ),
        migrations.RunSQL(
            TRACE_REFUSES_DELETE_OF_EVIDENCE, "DROP FUNCTION validators_trace_refuses_delete_of_evidence CASCADE;"
        ),
        migrations.RunSQL(
            *refuse_change(
                "validators_trace",
                operations=("TRUNCATE",),
                message="evidence names traces, which never change; add another one",
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "validators_trace",
                operations=("UPDATE",),
                when="((to_jsonb(new.*) - 'created_by_id'::text) <> (to_jsonb(old.*) - 'created_by_id'::text))",
                message="evidence names traces, which never change; add another one",
            )
        ),
    ]
