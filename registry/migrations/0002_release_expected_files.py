"""A draft may announce its files, so that it can say which are missing."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("registry", "0001_initial")]

    operations = [
        migrations.AddField("release", "expected_files", models.JSONField(default=list)),
    ]
