"""The undo window and A/A tests under the names that the code has for them."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0006_reverted")]

    operations = [
        migrations.RenameField("rollout", "warm_until", "undo_until"),
        migrations.RenameModel("SelfTest", "AATestRecord"),
    ]
