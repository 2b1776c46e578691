"""Webhooks, deliveries and attempts are the notifications' now; their tables were renamed there."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("ledger", "0006_gate_run_verbs"), ("notifications", "0001_from_the_ledger")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.DeleteModel(name) for name in ("Attempt", "Delivery", "Subscription")]
        )
    ]
