"""How much of a route's traffic is copied to the prober."""

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("serving", "0001_initial")]

    operations = [
        migrations.AddField("route", "mirror_bp", models.PositiveIntegerField(default=0)),
        migrations.AddConstraint(
            "route", models.CheckConstraint(condition=Q(mirror_bp__lte=10000), name="route_mirror_in_range")
        ),
        migrations.AddConstraint(
            "route",
            models.CheckConstraint(
                condition=Q(mirror_bp=0) | Q(candidate__isnull=False), name="route_mirror_has_candidate"
            ),
        ),
    ]
