from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("serving", "0004_attestation"),
    ]

    operations = [
        migrations.AddField(
            model_name="route",
            name="changes",
            field=models.PositiveIntegerField(default=0),
        ),
    ]
