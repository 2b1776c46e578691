"""Rollouts in full: shadowing, staged approvals, observations in blocks, the prober's tallies, the self-test."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.utils import timezone

from ledger.core.triggers import refuse_change

OBSERVATION = "rollouts_observation"
_ROW_BY_ROW = refuse_change(OBSERVATION, message="observations are append-only; write a new row instead")
_NO_UPDATE = refuse_change(
    OBSERVATION, operations=("UPDATE",), message="observations are append-only; write a new row instead"
)
#: A block may go when a coarser one of the same rollout covers its ticks.
_DELETE_WHEN_COVERED = """
CREATE FUNCTION rollouts_observation_stays_covered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM rollouts_observation o WHERE o.rollout_id = OLD.rollout_id AND o.id <> OLD.id
                   AND o.first_tick <= OLD.first_tick AND o.tick >= OLD.tick
                   AND o.tick - o.first_tick > OLD.tick - OLD.first_tick) THEN
        RAISE EXCEPTION 'an observation is only replaced by a coarser one that covers its ticks' USING ERRCODE = '23000';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER rollouts_observation_stays_covered BEFORE DELETE ON rollouts_observation
    FOR EACH ROW EXECUTE FUNCTION rollouts_observation_stays_covered();
"""
_DELETE_FREELY = """
DROP TRIGGER rollouts_observation_stays_covered ON rollouts_observation;
DROP FUNCTION rollouts_observation_stays_covered();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("registry", "0004_no_truncate"),
        ("rollouts", "0003_no_truncate"),
        ("serving", "0001_initial"),
        ("validators", "0003_no_truncate"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RunSQL(_ROW_BY_ROW[1], _ROW_BY_ROW[0]),
        migrations.CreateModel(
            name="Mismatch",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
                ("source", models.CharField(max_length=10)),
                ("summary", models.TextField()),
                ("facts", models.JSONField(default=dict)),
            ],
        ),
        migrations.CreateModel(
            name="ProbeTally",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("guard", models.CharField(max_length=60)),
                ("epoch", models.CharField(max_length=60)),
                ("candidate_attempts", models.BigIntegerField(default=0)),
                ("candidate_bad", models.BigIntegerField(default=0)),
                ("stable_attempts", models.BigIntegerField(default=0)),
                ("stable_bad", models.BigIntegerField(default=0)),
                ("at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="SelfTest",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("state", models.JSONField(default=dict)),
                ("at", models.DateTimeField()),
                ("alarmed_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.RemoveConstraint(
            model_name="approval",
            name="approval_once",
        ),
        migrations.RemoveConstraint(
            model_name="observation",
            name="observation_once",
        ),
        migrations.RemoveConstraint(
            model_name="rollout",
            name="rollout_state_known",
        ),
        migrations.RemoveConstraint(
            model_name="rollout",
            name="rollout_one_active",
        ),
        migrations.AddField(
            model_name="approval",
            name="expires_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="approval",
            name="stage",
            field=models.CharField(default="start", max_length=20),
        ),
        migrations.AddField(
            model_name="observation",
            name="first_tick",
            field=models.BigIntegerField(default=0),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="observation",
            name="from_at",
            field=models.DateTimeField(default=timezone.now),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="observation",
            name="state",
            field=models.CharField(default="shifting", max_length=20),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="observation",
            name="ticks",
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name="rollout",
            name="mirror_bp",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="rollout",
            name="promote_now",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="rollout",
            name="supersedes",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="superseded_by",
                to="rollouts.rollout",
            ),
        ),
        migrations.AddField(
            model_name="rollout",
            name="warm_until",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddIndex(
            model_name="approval",
            index=models.Index(fields=["rollout", "stage"], name="approval_by_stage"),
        ),
        migrations.AddConstraint(
            model_name="observation",
            constraint=models.UniqueConstraint(fields=("rollout", "first_tick", "tick"), name="observation_once"),
        ),
        migrations.AddConstraint(
            model_name="rollout",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "state__in",
                        [
                            "requested",
                            "awaiting_approval",
                            "preparing",
                            "shadowing",
                            "shifting",
                            "paused",
                            "baking",
                            "promoted",
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
        ),
        migrations.AddConstraint(
            model_name="rollout",
            constraint=models.UniqueConstraint(
                condition=models.Q(
                    (
                        "state__in",
                        [
                            "awaiting_approval",
                            "baking",
                            "paused",
                            "preparing",
                            "requested",
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
        ),
        migrations.AddField(
            model_name="mismatch",
            name="rollout",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="mismatches", to="rollouts.rollout"
            ),
        ),
        migrations.AddField(
            model_name="probetally",
            name="rollout",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="tallies", to="rollouts.rollout"
            ),
        ),
        migrations.AddField(
            model_name="selftest",
            name="environment",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="self_tests", to="serving.environment"
            ),
        ),
        migrations.AddField(
            model_name="selftest",
            name="model",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="self_tests", to="registry.servedmodel"
            ),
        ),
        migrations.AddConstraint(
            model_name="probetally",
            constraint=models.UniqueConstraint(fields=("rollout", "guard"), name="tally_once"),
        ),
        migrations.AddConstraint(
            model_name="selftest",
            constraint=models.UniqueConstraint(fields=("environment", "model"), name="self_test_once"),
        ),
        migrations.RunSQL(
            "UPDATE rollouts_observation SET first_tick = tick, from_at = at; SET CONSTRAINTS ALL IMMEDIATE;",
            migrations.RunSQL.noop,
        ),
        migrations.RunSQL(*_NO_UPDATE),
        migrations.RunSQL(_DELETE_WHEN_COVERED, _DELETE_FREELY),
    ]
