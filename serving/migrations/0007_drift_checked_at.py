"""The comparison of a server's files with what was sealed is a drift check; attestations are signed statements."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("serving", "0006_route_ack_taken")]

    operations = [migrations.RenameField("server", "attested_at", "drift_checked_at")]
