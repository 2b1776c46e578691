from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("serving", "0032_static_servers")]

    operations = [
        migrations.RunSQL(
            "UPDATE serving_node SET removed_at = cordoned_at WHERE removed_at IS NULL AND cordoned_at IS NOT NULL",
            migrations.RunSQL.noop,
        ),
        *(migrations.RemoveField("node", name) for name in ("cordoned_at", "cordoned_by", "cordon_reason", "version")),
    ]
