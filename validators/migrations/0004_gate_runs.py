"""A run of gates is a gate run, what one gate of it gave is a gate result: the words that API, CLI and pages always had."""

from django.db import migrations, models
from django.db.models import Q, deletion

_VERDICTS = ["", "passed", "skipped", "undecided", "errored", "failed"]


class Migration(migrations.Migration):
    dependencies = [("validators", "0003_no_truncate")]

    operations = [
        migrations.RemoveConstraint("validation", "validation_state_known"),
        migrations.RemoveConstraint("validation", "validation_verdict_known"),
        migrations.RemoveConstraint("validation", "validation_once_running"),
        migrations.RemoveConstraint("gaterun", "gate_run_once"),
        migrations.RemoveConstraint("gaterun", "gate_run_verdict_known"),
        migrations.RenameModel("GateRun", "GateResult"),
        migrations.RenameModel("Validation", "GateRun"),
        migrations.RenameField("gateresult", "validation", "gate_run"),
        migrations.RenameField("report", "validation", "gate_run"),
        migrations.AlterField(
            "gaterun",
            "release",
            models.ForeignKey(on_delete=deletion.PROTECT, related_name="gate_runs", to="registry.release"),
        ),
        migrations.AlterField(
            "gateresult",
            "gate_run",
            models.ForeignKey(on_delete=deletion.PROTECT, related_name="results", to="validators.gaterun"),
        ),
        migrations.AddConstraint(
            "gaterun",
            models.CheckConstraint(
                condition=Q(state__in=["queued", "running", "finished", "cancelled"]), name="gate_run_state_known"
            ),
        ),
        migrations.AddConstraint(
            "gaterun", models.CheckConstraint(condition=Q(verdict__in=_VERDICTS), name="gate_run_verdict_known")
        ),
        migrations.AddConstraint(
            "gaterun",
            models.UniqueConstraint(
                fields=["release"], condition=Q(state__in=["queued", "running"]), name="gate_run_once_running"
            ),
        ),
        migrations.AddConstraint(
            "gateresult", models.UniqueConstraint(fields=["gate_run", "gate"], name="gate_result_once")
        ),
        migrations.AddConstraint(
            "gateresult", models.CheckConstraint(condition=Q(verdict__in=_VERDICTS), name="gate_result_verdict_known")
        ),
    ]
