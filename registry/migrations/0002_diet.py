"""Drops the stored plan of a collection, which only the page of the storage read."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("registry", "0001_squashed_0015_traffic_policy")]
    operations = [migrations.DeleteModel(name="StoragePlan")]
