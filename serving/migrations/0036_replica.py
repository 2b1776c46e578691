"""New names in Python alone. Tables and columns keep theirs: the triggers of 0035 and processes that still run go on working."""

from django.db import migrations, models
from django.db.models.deletion import CASCADE, PROTECT

ONCE = "deployment_once_in_its_slot"


class Migration(migrations.Migration):
    dependencies = [("serving", "0035_endpoint")]

    operations = [
        migrations.AlterModelTable("deployment", "serving_deployment"),
        migrations.AlterModelTable("scale", "serving_scale"),
        migrations.AlterField("deployment", "slot", models.PositiveSmallIntegerField(default=0, db_column="slot")),
        migrations.AlterField(
            "server",
            "deployment",
            models.ForeignKey("serving.deployment", CASCADE, related_name="servers", db_column="deployment_id"),
        ),
        migrations.SeparateDatabaseAndState(state_operations=[migrations.RemoveConstraint("deployment", ONCE)]),
        migrations.RenameModel("Deployment", "Replica"),
        migrations.RenameModel("Scale", "ReplicaTarget"),
        migrations.RenameField("replica", "slot", "ordinal"),
        migrations.RenameField("server", "deployment", "replica"),
        migrations.SeparateDatabaseAndState(  # the index rests on columns, which stay
            state_operations=[
                migrations.AddConstraint(
                    "replica",
                    models.UniqueConstraint(
                        fields=["release", "environment", "ordinal"],
                        condition=models.Q(
                            state__in=["draining", "failed", "fetching", "loading", "ready", "warming"],
                            is_wanted=True,
                            drain_asked_at=None,
                        ),
                        name=ONCE,
                    ),
                )
            ]
        ),
        *(
            migrations.AlterField("replica", name, models.ForeignKey(to, PROTECT, related_name="replicas"))
            for name, to in (
                ("release", "registry.release"),
                ("environment", "serving.environment"),
                ("node", "serving.node"),
            )
        ),
        *(
            migrations.AlterField("replicatarget", name, models.ForeignKey(to, CASCADE, related_name="replica_targets"))
            for name, to in (("release", "registry.release"), ("environment", "serving.environment"))
        ),
    ]
