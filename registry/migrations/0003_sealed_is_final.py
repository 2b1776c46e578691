"""The database itself refuses to change what is sealed: releases, their files, blobs' identity and waivers.

Each refusal is an integrity error (SQLSTATE 23000), which Django raises as IntegrityError, whoever asks: the ORM,
raw SQL or psql. The next migration refuses TRUNCATE as well.
"""

from django.db import migrations

from ledger.core.triggers import refuse_change

RELEASE = """
CREATE FUNCTION registry_release_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 'draft' THEN
        IF TG_OP = 'UPDATE' AND NEW.state = 'retired' THEN
            RAISE EXCEPTION 'a draft cannot be retired; discard it' USING ERRCODE = '23000';
        END IF;
        RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    END IF;
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'release % is sealed and cannot be deleted; retire it', OLD.id USING ERRCODE = '23000';
    END IF;
    IF NEW.state IS DISTINCT FROM OLD.state AND NOT (OLD.state = 'sealed' AND NEW.state = 'retired') THEN
        RAISE EXCEPTION 'release % cannot go from % to %', OLD.id, OLD.state, NEW.state USING ERRCODE = '23000';
    END IF;
    IF to_jsonb(NEW) - ARRAY['state', 'version'] IS DISTINCT FROM to_jsonb(OLD) - ARRAY['state', 'version'] THEN
        RAISE EXCEPTION 'release % is sealed and cannot be changed; push a new release', OLD.id USING ERRCODE = '23000';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER registry_release_is_final BEFORE UPDATE OR DELETE ON registry_release
    FOR EACH ROW EXECUTE FUNCTION registry_release_is_final();
"""

# FOR SHARE waits for a seal under way: a file can neither slip in beside it nor out of it.
FILE = """
CREATE FUNCTION registry_releasefile_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    of_release uuid;
    its_state text;
BEGIN
    FOREACH of_release IN ARRAY CASE TG_OP
        WHEN 'INSERT' THEN ARRAY[NEW.release_id]
        WHEN 'DELETE' THEN ARRAY[OLD.release_id]
        ELSE ARRAY[OLD.release_id, NEW.release_id] END
    LOOP
        SELECT state INTO its_state FROM registry_release WHERE id = of_release FOR SHARE;
        IF its_state <> 'draft' THEN
            RAISE EXCEPTION 'the files of release % are sealed and cannot be changed; push a new release', of_release
                USING ERRCODE = '23000';
        END IF;
    END LOOP;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER registry_releasefile_is_final BEFORE INSERT OR UPDATE OR DELETE ON registry_releasefile
    FOR EACH ROW EXECUTE FUNCTION registry_releasefile_is_final();
"""

BLOB = refuse_change(
    "registry_blob",
    when="NEW.sha256 <> OLD.sha256 OR NEW.size_bytes <> OLD.size_bytes",
    operations=("UPDATE",),
    message="a blob keeps its sha256 and size; store other bytes as another blob",
)
WAIVER = refuse_change(
    "registry_waiver", message="a waiver cannot be changed or deleted; grant another for another release"
)


def _undo(table: str, name: str) -> str:
    return f"DROP TRIGGER {name} ON {table}; DROP FUNCTION {name}();"


class Migration(migrations.Migration):
    dependencies = [("registry", "0002_release_expected_files")]

    operations = [
        migrations.RunSQL(RELEASE, _undo("registry_release", "registry_release_is_final")),
        migrations.RunSQL(FILE, _undo("registry_releasefile", "registry_releasefile_is_final")),
        migrations.RunSQL(*BLOB),
        migrations.RunSQL(*WAIVER),
    ]
