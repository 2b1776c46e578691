"""Drops the stored plan of a collection, which only the page of the storage read."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("registry", "0001_squashed_0015_traffic_policy"), ("ledger", "0001_squashed_0008_event_search")]
    operations = [
        migrations.DeleteModel(name="StoragePlan"),
        migrations.RunSQL(  # jobs that no worker has a handler for any more
            "UPDATE ledger_job SET state = 'failed', error = 'Plans of a collection are not stored any more.', finished_at = now()"
            " WHERE kind = 'registry.plan_storage' AND state IN ('queued', 'running')",
            migrations.RunSQL.noop,
        ),
    ]
