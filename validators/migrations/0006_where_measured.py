"""Where each gate measured, and from which report a result was taken over because it holds still."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("validators", "0005_measurement")]

    operations = [
        migrations.AddField("gateresult", "measured", models.JSONField(default=dict)),
        migrations.AddField(
            "gateresult",
            "reused_from",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="validators.report",
            ),
        ),
    ]
