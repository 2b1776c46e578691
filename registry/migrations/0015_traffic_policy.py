from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("registry", "0014_storage_plan"),
    ]

    operations = [
        migrations.AddField(
            model_name="servedmodel",
            name="traffic_policy",
            field=models.JSONField(blank=True, default=dict),
        ),
    ]
