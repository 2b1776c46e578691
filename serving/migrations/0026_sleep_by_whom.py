from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("serving", "0025_nodes_join"),
    ]

    operations = [
        migrations.AddField(
            model_name="sleep",
            name="state_by",
            field=models.CharField(blank=True, db_default="", default="", max_length=150),
        ),
    ]
