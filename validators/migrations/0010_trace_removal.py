"""A trace that no gate run went by may go; evidence names the others."""

from django.db import migrations

from ledger.core.triggers import INTEGRITY_ERROR, refuse_change

TABLE, MESSAGE = "validators_trace", "evidence names traces, which never change; add another one"
BEFORE = refuse_change(TABLE, operations=("DELETE", "TRUNCATE"), message=MESSAGE)
ALL = refuse_change(TABLE, operations=("TRUNCATE",), message=MESSAGE)
NAME = "validators_trace_refuses_delete_of_evidence"
NAMED = f"""
CREATE FUNCTION {NAME}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM validators_gaterun run JOIN registry_release release ON release.id = run.release_id
        WHERE release.model_id = OLD.model_id AND run.policy #>> '{{load,trace}}' = OLD.digest
    ) THEN
        RAISE EXCEPTION 'a gate run went by this trace, which is its evidence' USING ERRCODE = '{INTEGRITY_ERROR}';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER {NAME} BEFORE DELETE ON {TABLE} FOR EACH ROW EXECUTE FUNCTION {NAME}();
"""


class Migration(migrations.Migration):
    dependencies = [("validators", "0009_traces")]

    operations = [
        migrations.RunSQL(BEFORE[1], BEFORE[0]),
        migrations.RunSQL(*ALL),
        migrations.RunSQL(NAMED, f"DROP TRIGGER {NAME} ON {TABLE}; DROP FUNCTION {NAME}();"),
    ]
