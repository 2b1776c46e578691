from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rollouts", "0010_recent_traffic"),
    ]

    operations = [
        migrations.AddField(
            model_name="aatestrecord",
            name="tenants",
            field=models.JSONField(default=dict),
        ),
    ]
