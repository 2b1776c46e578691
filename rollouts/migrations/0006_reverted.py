"""A promotion that was undone is `reverted`; `requested`, which was written and left in one transaction, is gone."""

from django.db import migrations, models

_BEFORE_TRAFFIC = ["awaiting_approval", "preparing"]
_LIVE = ["shadowing", "shifting", "paused", "baking"]
_UNDER_WAY = [*_BEFORE_TRAFFIC, *_LIVE, "rolling_back", "stuck"]
_STATES = [*_BEFORE_TRAFFIC, *_LIVE, "promoted", "reverted", "rolling_back", "rolled_back", "stuck"]
_STATES += ["rejected", "cancelled", "superseded"]
_REVERT = """
UPDATE rollouts_rollout rollout SET state = 'reverted'
WHERE state = 'promoted' AND weight_bp = 0
  AND EXISTS (SELECT 1 FROM rollouts_decision d WHERE d.rollout_id = rollout.id AND d.code = 'instant');
"""
_PROMOTE = "UPDATE rollouts_rollout SET state = 'promoted' WHERE state = 'reverted';"


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0005_refuse_retired")]

    operations = [
        migrations.RemoveConstraint(model_name="rollout", name="rollout_state_known"),
        migrations.RemoveConstraint(model_name="rollout", name="rollout_one_active"),
        migrations.RunSQL(_REVERT, _PROMOTE),
        migrations.AlterField(model_name="rollout", name="state", field=models.CharField(max_length=20)),
        migrations.AddConstraint(
            model_name="rollout",
            constraint=models.CheckConstraint(condition=models.Q(state__in=_STATES), name="rollout_state_known"),
        ),
        migrations.AddConstraint(
            model_name="rollout",
            constraint=models.UniqueConstraint(
                fields=["environment", "model"],
                condition=models.Q(state__in=sorted(_UNDER_WAY)),
                name="rollout_one_active",
            ),
        ),
    ]
