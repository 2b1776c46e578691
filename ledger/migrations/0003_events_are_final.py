"""The database itself refuses to change the log."""

from django.db import migrations

from ledger.core.triggers import refuse_change

EVENT = refuse_change(
    "ledger_event",
    operations=("UPDATE", "DELETE", "TRUNCATE"),
    message="events are never changed or deleted; append a new one that corrects it",
)
HEAD = refuse_change(
    "ledger_chainhead", operations=("DELETE", "TRUNCATE"), message="the head of the log is never deleted"
)


class Migration(migrations.Migration):
    dependencies = [("ledger", "0002_chain_head_and_sent_at")]

    operations = [migrations.RunSQL(*EVENT), migrations.RunSQL(*HEAD)]
