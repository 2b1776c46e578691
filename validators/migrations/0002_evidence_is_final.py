"""The database itself refuses to change evidence: judged gates, reports and golden sets.

A refusal is an integrity error (SQLSTATE 23000), which Django raises as IntegrityError, whoever asks.
"""

from django.db import migrations

GATE_RUN = """
CREATE FUNCTION validators_gaterun_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.verdict <> '' THEN
        RAISE EXCEPTION 'gate run % has a verdict and cannot be changed; run the gates again', OLD.id
            USING ERRCODE = '23000';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER validators_gaterun_is_final BEFORE UPDATE OR DELETE ON validators_gaterun
    FOR EACH ROW EXECUTE FUNCTION validators_gaterun_is_final();
"""

REPORT = """
CREATE FUNCTION validators_report_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'report % is sealed and cannot be changed; run the gates again', OLD.id USING ERRCODE = '23000';
END $$;
CREATE TRIGGER validators_report_is_final BEFORE UPDATE OR DELETE ON validators_report
    FOR EACH ROW EXECUTE FUNCTION validators_report_is_final();
"""

GOLDEN_SET = """
CREATE FUNCTION validators_goldenset_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND to_jsonb(NEW) - 'created_by_id' = to_jsonb(OLD) - 'created_by_id' THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'golden set % cannot be changed; add another one', OLD.digest USING ERRCODE = '23000';
END $$;
CREATE TRIGGER validators_goldenset_is_final BEFORE UPDATE OR DELETE ON validators_goldenset
    FOR EACH ROW EXECUTE FUNCTION validators_goldenset_is_final();
"""


def undo(table: str) -> str:
    return f"DROP TRIGGER {table}_is_final ON {table}; DROP FUNCTION {table}_is_final();"


class Migration(migrations.Migration):
    dependencies = [("validators", "0001_initial")]

    operations = [
        migrations.RunSQL(GATE_RUN, undo("validators_gaterun")),
        migrations.RunSQL(REPORT, undo("validators_report")),
        migrations.RunSQL(GOLDEN_SET, undo("validators_goldenset")),
    ]
