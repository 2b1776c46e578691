"""The numbers of reports as rows, for those that are there too."""

import json

import django.db.models.deletion
from django.db import migrations, models


def fill(apps, schema_editor):
    from validators.core.gate_diff import metrics_of

    Report, Measurement = apps.get_model("validators", "Report"), apps.get_model("validators", "Measurement")
    for report in Report.objects.only("pk", "body").order_by("pk").iterator(chunk_size=100):
        Measurement.objects.bulk_create(
            Measurement(report=report, gate=one.gate, name=one.name, unit=one.unit, value=one.value)
            for gate in json.loads(report.body)["gates"]
            for one in metrics_of(gate["gate"], gate.get("evidence") or {})
        )


class Migration(migrations.Migration):
    dependencies = [("validators", "0004_gate_runs")]

    operations = [
        migrations.CreateModel(
            name="Measurement",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("gate", models.CharField(max_length=30)),
                ("name", models.CharField(max_length=60)),
                ("unit", models.CharField(max_length=10)),
                ("value", models.FloatField()),
                (
                    "report",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="measurements", to="validators.report"
                    ),
                ),
            ],
        ),
        migrations.AddConstraint(
            model_name="measurement",
            constraint=models.UniqueConstraint(fields=("report", "gate", "name"), name="measurement_once"),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
