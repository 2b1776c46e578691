import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0014_crossings")]

    operations = [
        migrations.AlterModelTable("AATestRecord", "rollouts_aatestrecord"),
        migrations.RenameModel("AATestRecord", "TrafficRecord"),
        migrations.RemoveField("TrafficRecord", "alarmed_at"),
        migrations.AlterField(
            "TrafficRecord",
            "environment",
            models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="serving.environment"),
        ),
        migrations.AlterField(
            "TrafficRecord",
            "model",
            models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="registry.servedmodel"),
        ),
    ]
