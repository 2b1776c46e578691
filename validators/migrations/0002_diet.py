from django.db import migrations

_TRIGGERS = ("trace_refuses_delete_of_evidence", "trace_refuses_truncate", "trace_refuses_update")


class Migration(migrations.Migration):
    dependencies = [
        ("registry", "0001_squashed_0015_traffic_policy"),
        ("validators", "0001_squashed_0010_trace_removal"),
    ]

    operations = [
        migrations.RunSQL(  # policy fields that no gate has any more
            "UPDATE registry_servedmodel"
            " SET gate_policy = (gate_policy - 'kept_requests') #- '{capacity,sweep}' #- '{load,trace}'",
            migrations.RunSQL.noop,
        ),
        migrations.RunSQL(
            "\n".join(f"DROP FUNCTION IF EXISTS validators_{name} CASCADE;" for name in _TRIGGERS),
            migrations.RunSQL.noop,
        ),
        migrations.DeleteModel("Trace"),
        migrations.DeleteModel("KeptRequest"),
    ]
