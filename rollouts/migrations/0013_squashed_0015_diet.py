import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from ledger.migrations._together import Together


class Migration(migrations.Migration):
    replaces = [("rollouts", "0013_displaced"), ("rollouts", "0014_crossings"), ("rollouts", "0015_diet")]
    dependencies = [
        ("registry", "0001_squashed_0015_traffic_policy"),
        ("rollouts", "0001_squashed_0012_class_traffic"),
        ("serving", "0028_squashed_0034_no_variants"),
        ("validators", "0001_squashed_0010_trace_removal"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveField("AATestRecord", "alarmed_at"),
        Together(
            migrations.AddField(
                model_name="rollout",
                name="displaced",
                field=models.ForeignKey(
                    null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="registry.release"
                ),
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
                model_name="rollout",
                name="crossings",
                field=models.JSONField(default=list),
            ),
            migrations.AddConstraint(
                model_name="rollout",
                constraint=models.CheckConstraint(
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
                                "second_look",
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
                                "rolling_back",
                                "second_look",
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
            migrations.SeparateDatabaseAndState(
                state_operations=[
                    migrations.AlterModelTable("AATestRecord", "rollouts_aatestrecord"),
                    migrations.RenameModel("AATestRecord", "TrafficRecord"),
                    migrations.AlterField(
                        "TrafficRecord",
                        "environment",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="+", to="serving.environment"
                        ),
                    ),
                    migrations.AlterField(
                        "TrafficRecord",
                        "model",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="+", to="registry.servedmodel"
                        ),
                    ),
                ]
            ),
        ),
    ]
