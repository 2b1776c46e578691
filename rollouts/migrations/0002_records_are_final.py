"""What was observed, decided and approved stays as it was written: the database refuses to change it."""

from django.db import migrations

from ledger.core.triggers import refuse_change


def _final(table: str, what: str) -> migrations.RunSQL:
    return migrations.RunSQL(*refuse_change(table, message=f"{what} are append-only; write a new row instead"))


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0001_initial")]

    operations = [
        _final("rollouts_decision", "decisions"),
        _final("rollouts_approval", "approvals"),
        _final("rollouts_observation", "observations"),
    ]
