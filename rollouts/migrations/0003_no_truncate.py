"""Emptying a table is refused like deleting its rows: what was decided, seen and approved stays."""

from django.db import migrations

from ledger.core.triggers import refuse_change

MESSAGE = "the record of a rollout is never deleted"


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0002_records_are_final")]

    operations = [
        migrations.RunSQL(*refuse_change(table, operations=("TRUNCATE",), message=MESSAGE))
        for table in ("rollouts_rollout", "rollouts_decision", "rollouts_approval", "rollouts_observation")
    ]
