from django.db import migrations

_GONE = (
    "credential",
    "credential_at",
    "credential_used_at",
    "joined_at",
    "joined_by",
    "rotation_asked_at",
    "revoked_at",
    "revoked_by",
    "revoke_reason",
)


class Migration(migrations.Migration):
    dependencies = [("serving", "0030_no_prefetch")]

    operations = [
        migrations.DeleteModel("NodeInvite"),
        *(migrations.RemoveField("node", name) for name in _GONE),
    ]
