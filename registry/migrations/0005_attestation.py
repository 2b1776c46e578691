"""Signed statements about releases, which the database neither changes nor deletes."""

import django.db.models.deletion
from django.db import migrations, models

from ledger.core.triggers import refuse_change

MESSAGE = "an attestation is never deleted or changed; make another one"


class Migration(migrations.Migration):
    dependencies = [("registry", "0004_no_truncate")]

    operations = [
        migrations.CreateModel(
            name="Attestation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("predicate_type", models.CharField(max_length=200)),
                ("about", models.CharField(max_length=71)),
                ("bundle", models.TextField()),
                ("key_id", models.CharField(max_length=71)),
                ("made_at", models.DateTimeField(auto_now_add=True)),
                (
                    "release",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="attestations",
                        to="registry.release",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("release", "predicate_type", "about", "key_id"), name="attestation_once_per_key"
                    )
                ],
            },
        ),
        migrations.RunSQL(*refuse_change("registry_attestation", message=MESSAGE)),
        migrations.RunSQL(*refuse_change("registry_attestation", operations=("TRUNCATE",), message=MESSAGE)),
    ]
