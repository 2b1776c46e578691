"""A decision that is kept is a record of one; `Decision` is the engine's own value."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0007_standard_words")]

    operations = [migrations.RenameModel("Decision", "DecisionRecord")]
