"""Emptying a table is refused like deleting its rows: evidence stays."""

from django.db import migrations

from ledger.core.triggers import refuse_change

MESSAGE = "evidence is never deleted; run the gates again"


class Migration(migrations.Migration):
    dependencies = [("validators", "0002_evidence_is_final")]

    operations = [
        migrations.RunSQL(*refuse_change(table, operations=("TRUNCATE",), message=MESSAGE))
        for table in ("validators_gaterun", "validators_report", "validators_goldenset")
    ]
