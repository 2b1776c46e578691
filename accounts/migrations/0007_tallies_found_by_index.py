import django.utils.timezone
from django.db import migrations, models

_FILL = """
UPDATE accounts_signintally
    SET forget_at = GREATEST(now(), failed_at + interval '1 day', known_at + interval '90 days');
"""


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0006_roles_of_several_issuers"),
    ]

    operations = [
        migrations.RemoveIndex(model_name="signintally", name="sign_in_tally_to_forget"),
        migrations.AddField(
            model_name="signintally",
            name="forget_at",
            field=models.DateTimeField(db_index=True, default=django.utils.timezone.now),
        ),
        migrations.RunSQL(_FILL, migrations.RunSQL.noop),
    ]
