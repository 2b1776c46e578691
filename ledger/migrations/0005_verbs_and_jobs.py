"""Webhooks follow the verbs: some were renamed, and some that no action ever wrote are gone. So is the state of a job that nobody used."""

from django.db import migrations, models

_RENAMED = {"validation.moved": "validation.*", "rollout.taken_back": "rollout.reverted"}
_BACK = {"validation.started": "validation.moved", "rollout.reverted": "rollout.taken_back"}
_NEVER_WRITTEN = {
    "role.revoked", "user.signed_in", "environment.created", "environment.changed", "environment.*", "runtime.registered",
    "runtime.*", "job.cancelled", "engine.led", "engine.*",
}  # fmt: skip
_STATES = ["queued", "running", "done", "failed"]


def _follow(apps, schema_editor):
    """One that means nothing any more is turned off, so that its page says so."""
    for row in apps.get_model("ledger", "Subscription").objects.all():
        verbs = list(dict.fromkeys(_RENAMED.get(one, one) for one in row.verbs if one not in _NEVER_WRITTEN))
        if verbs != row.verbs:
            row.verbs, row.is_active = verbs, row.is_active and bool(verbs)
            row.save(update_fields=["verbs", "is_active"])


def _return(apps, schema_editor):
    for row in apps.get_model("ledger", "Subscription").objects.all():
        verbs = list(dict.fromkeys(_BACK.get(one, one) for one in row.verbs))
        if verbs != row.verbs:
            row.verbs = verbs
            row.save(update_fields=["verbs"])


def _states(states):
    return [
        migrations.RemoveConstraint(model_name="job", name="job_state_known"),
        migrations.AlterField(
            model_name="job",
            name="state",
            field=models.CharField(choices=[(state, state) for state in states], default="queued", max_length=10),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(condition=models.Q(state__in=states), name="job_state_known"),
        ),
    ]


class Migration(migrations.Migration):
    dependencies = [("ledger", "0004_outbox")]

    operations = [migrations.RunPython(_follow, _return), *_states(_STATES)]
