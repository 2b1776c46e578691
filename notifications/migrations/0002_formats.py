"""Webhooks have a format, and addresses that are secrets. Those that are there are signed, as they were."""

from django.db import migrations, models

_FORMATS = ["signed", "slack", "teams", "pagerduty"]


def _e_mails_have_none(apps, editor):
    apps.get_model("notifications", "Webhook").objects.filter(kind="email").update(format="")


class Migration(migrations.Migration):
    dependencies = [("notifications", "0001_from_the_ledger")]

    operations = [
        migrations.AddField(
            model_name="webhook",
            name="format",
            field=models.CharField(
                blank=True, choices=[(name, name) for name in _FORMATS], default="signed", max_length=10
            ),
        ),
        migrations.AddField(
            model_name="webhook",
            name="secret_target",
            field=models.TextField(blank=True, default=""),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="webhook",
            name="fingerprint",
            field=models.CharField(blank=True, default="", max_length=8),
            preserve_default=False,
        ),
        migrations.RunPython(_e_mails_have_none, migrations.RunPython.noop),
        migrations.AddConstraint(
            model_name="webhook",
            constraint=models.CheckConstraint(
                condition=models.Q(kind="webhook", format__in=_FORMATS)
                | (~models.Q(kind="webhook") & models.Q(format="")),
                name="webhook_format_known",
            ),
        ),
        migrations.RemoveConstraint(model_name="webhook", name="webhook_once_per_target"),
        migrations.AddConstraint(
            model_name="webhook",
            constraint=models.UniqueConstraint(
                fields=["team", "kind", "target", "fingerprint"], nulls_distinct=False, name="webhook_once_per_target"
            ),
        ),
    ]
