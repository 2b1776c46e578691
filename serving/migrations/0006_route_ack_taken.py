from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("serving", "0005_route_changes"),
    ]

    operations = [
        migrations.AddField(
            model_name="routeack",
            name="taken",
            field=models.BigIntegerField(db_default=0),
        ),
    ]
