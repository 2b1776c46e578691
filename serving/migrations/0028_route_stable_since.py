from django.db import migrations, models
from django.db.models import F


def fill(apps, schema_editor):
    """The newest change is the best that an older row knows."""
    apps.get_model("serving", "Route").objects.filter(stable_since=None).update(stable_since=F("changed_at"))


class Migration(migrations.Migration):
    dependencies = [("serving", "0001_squashed_0027_gateway_follows")]

    operations = [
        migrations.AddField("route", "stable_since", models.DateTimeField(null=True)),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
