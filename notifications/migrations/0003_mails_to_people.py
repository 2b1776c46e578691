"""Mails to single persons: whose a delivery is and what for, what each person chose, and deliveries that nobody needs any more."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

_KINDS = ["webhook", "email", "people"]
_STATES = ["pending", "failed", "delivered", "gave_up", "withdrawn"]


def _without_people(apps, editor):
    """Before this there is no such row, and nothing else is withdrawn."""
    apps.get_model("notifications", "Webhook").objects.filter(kind="people").delete()
    editor.execute("SET CONSTRAINTS ALL IMMEDIATE")


class Migration(migrations.Migration):
    dependencies = [("accounts", "0005_issuers"), ("notifications", "0002_formats")]

    operations = [
        migrations.CreateModel(
            name="MailChoice",
            fields=[
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="mail_choice",
                        serialize=False,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("wants_approvals", models.BooleanField(default=True)),
                ("wants_rollbacks", models.BooleanField(default=True)),
            ],
        ),
        migrations.RemoveConstraint(model_name="delivery", name="delivery_state_known"),
        migrations.RemoveConstraint(model_name="delivery", name="delivery_once_per_event"),
        migrations.RemoveConstraint(model_name="webhook", name="webhook_kind_known"),
        migrations.AddField(
            model_name="delivery",
            name="need",
            field=models.CharField(blank=True, default="", max_length=100),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="delivery",
            name="person",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AlterField(
            model_name="delivery",
            name="state",
            field=models.CharField(choices=[(name, name) for name in _STATES], default="pending", max_length=10),
        ),
        migrations.AlterField(
            model_name="webhook",
            name="kind",
            field=models.CharField(choices=[(name, name) for name in _KINDS], max_length=10),
        ),
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.CheckConstraint(condition=models.Q(state__in=_STATES), name="delivery_state_known"),
        ),
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.UniqueConstraint(
                condition=models.Q(person=None), fields=("webhook", "event"), name="delivery_once_per_event"
            ),
        ),
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.UniqueConstraint(
                condition=~models.Q(person=None), fields=("webhook", "person", "need"), name="delivery_once_per_need"
            ),
        ),
        migrations.AddConstraint(
            model_name="webhook",
            constraint=models.CheckConstraint(condition=models.Q(kind__in=_KINDS), name="webhook_kind_known"),
        ),
        migrations.RunPython(migrations.RunPython.noop, _without_people),
    ]
