from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("registry", "0015_traffic_policy"),
        ("validators", "0001_squashed_0010_trace_removal"),
    ]

    operations = [
        migrations.RunSQL(  # policy fields that no gate has any more
            "UPDATE registry_servedmodel SET gate_policy = gate_policy #- '{capacity,sweep}'",
            migrations.RunSQL.noop,
        ),
    ]
