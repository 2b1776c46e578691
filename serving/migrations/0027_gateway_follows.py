from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("serving", "0026_sleep_by_whom"),
    ]

    operations = [
        migrations.AddField(
            model_name="gateway",
            name="follows_at",
            field=models.DateTimeField(null=True),
        ),
    ]
