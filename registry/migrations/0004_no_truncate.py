"""Emptying a table is refused like deleting its sealed rows: the stack's own role owns the tables, so it could."""

from django.db import migrations

from ledger.core.triggers import refuse_change

MESSAGE = "what is sealed is never deleted; discard drafts one by one"


class Migration(migrations.Migration):
    dependencies = [("registry", "0003_sealed_is_final")]

    operations = [
        migrations.RunSQL(*refuse_change(table, operations=("TRUNCATE",), message=MESSAGE))
        for table in ("registry_release", "registry_releasefile", "registry_blob", "registry_waiver")
    ]
