from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rollouts", "0011_tenant_traffic"),
    ]

    operations = [
        migrations.AddField(
            model_name="aatestrecord",
            name="classes",
            field=models.JSONField(default=dict),
        ),
    ]
