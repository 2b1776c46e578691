"""Releases retire and come back, bytes get tombstones, aliases point at releases and tell every move."""

import django.db.models.deletion
from django.db import migrations, models

from ledger.core.triggers import refuse_change

_STATES = """
    IF NEW.state IS DISTINCT FROM OLD.state AND NOT {allowed} THEN
        RAISE EXCEPTION 'release % cannot go from % to %', OLD.id, OLD.state, NEW.state USING ERRCODE = '23000';
    END IF;
    IF to_jsonb(NEW) - ARRAY[{columns}] IS DISTINCT FROM to_jsonb(OLD) - ARRAY[{columns}] THEN
        RAISE EXCEPTION 'release % is sealed and cannot be changed; push a new release', OLD.id USING ERRCODE = '23000';
    END IF;
"""
_RELEASE = """
CREATE OR REPLACE FUNCTION registry_release_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
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
    {states}
    RETURN NEW;
END $$;
"""


def _release(allowed: str, columns: str) -> str:
    return _RELEASE.replace("{states}", _STATES.replace("{allowed}", allowed).replace("{columns}", columns))


BOTH_WAYS = _release(
    "((OLD.state = 'sealed' AND NEW.state = 'retired') OR (OLD.state = 'retired' AND NEW.state = 'sealed'))",
    "'state', 'version', 'retired_at'",
)
ONE_WAY = _release("(OLD.state = 'sealed' AND NEW.state = 'retired')", "'state', 'version'")

# Rooms above this one put it on their tables, with the names of the columns that name releases. FOR SHARE waits for a
# retirement under way: a release can neither be retired beside a route that begins to name it, nor named beside that.
REFUSE_RETIRED = """
CREATE FUNCTION registry_refuse_retired() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    col text;
    named uuid;
    its_state text;
BEGIN
    FOREACH col IN ARRAY TG_ARGV LOOP
        named := (to_jsonb(NEW) ->> col)::uuid;
        CONTINUE WHEN named IS NULL;
        CONTINUE WHEN TG_OP = 'UPDATE' AND (to_jsonb(OLD) ->> col)::uuid IS NOT DISTINCT FROM named;
        SELECT state INTO its_state FROM registry_release WHERE id = named FOR SHARE;
        IF its_state = 'retired' THEN
            RAISE EXCEPTION 'release % is retired; restore it, or name another', named USING ERRCODE = '23000';
        END IF;
    END LOOP;
    RETURN NEW;
END $$;
CREATE TRIGGER registry_alias_refuses_retired BEFORE INSERT OR UPDATE OF release_id ON registry_alias
    FOR EACH ROW EXECUTE FUNCTION registry_refuse_retired('release_id');
"""
REFUSE_RETIRED_UNDO = """
DROP TRIGGER registry_alias_refuses_retired ON registry_alias;
DROP FUNCTION registry_refuse_retired();
"""

# Checked when the transaction commits, for alias and event are written one after the other.
TOLD = """
CREATE FUNCTION registry_alias_is_told() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND (NEW.version <> OLD.version + 1 OR NEW.model_id <> OLD.model_id OR NEW.name <> OLD.name) THEN
        RAISE EXCEPTION 'an alias moves one version at a time and keeps its name; set it by its verb' USING ERRCODE = '23000';
    END IF;
    IF NOT EXISTS (SELECT FROM registry_aliasevent WHERE alias_id = NEW.id AND version = NEW.version
                   AND to_release_id IS NOT DISTINCT FROM NEW.release_id) THEN
        RAISE EXCEPTION 'an alias does not move without its event; set it by its verb' USING ERRCODE = '23000';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER registry_alias_is_told AFTER INSERT OR UPDATE ON registry_alias
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION registry_alias_is_told();
"""
TOLD_UNDO = """
DROP TRIGGER registry_alias_is_told ON registry_alias;
DROP FUNCTION registry_alias_is_told();
"""

_ID = ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))


def _to(model, related_name, *, null=False):
    return models.ForeignKey(
        null=null, on_delete=django.db.models.deletion.PROTECT, related_name=related_name, to=model
    )


class Migration(migrations.Migration):
    dependencies = [("registry", "0006_inspection")]

    operations = [
        migrations.AddField("blob", "collected_at", models.DateTimeField(null=True)),
        migrations.AddField("release", "retired_at", models.DateTimeField(null=True)),
        migrations.CreateModel(
            name="Tombstone",
            fields=[
                _ID,
                ("sha256", models.CharField(max_length=64)),
                ("size_bytes", models.BigIntegerField()),
                ("store_key", models.CharField(max_length=200)),
                ("reason", models.TextField()),
                ("evidence", models.JSONField(default=dict)),
                ("marked_by", models.CharField(max_length=150)),
                ("marked_at", models.DateTimeField()),
                ("due_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("outcome", models.CharField(blank=True, max_length=10)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at__isnull", True)),
                        fields=("store_key",),
                        name="tombstone_one_open_per_key",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("ended_at__isnull", True), ("outcome", "")),
                            models.Q(("ended_at__isnull", False), ("outcome__in", ["deleted", "restored"])),
                            _connector="OR",
                        ),
                        name="tombstone_outcome_known",
                    ),
                ],
                "indexes": [models.Index(fields=["sha256"], name="tombstone_by_sha256")],
            },
        ),
        migrations.CreateModel(
            name="Alias",
            fields=[
                _ID,
                ("name", models.CharField(max_length=40)),
                ("version", models.PositiveIntegerField(default=1)),
                ("changed_at", models.DateTimeField()),
                ("model", _to("registry.servedmodel", "aliases")),
                ("release", _to("registry.release", "aliases", null=True)),
            ],
            options={
                "ordering": ["name"],
                "constraints": [models.UniqueConstraint(fields=("model", "name"), name="alias_once")],
            },
        ),
        migrations.CreateModel(
            name="AliasEvent",
            fields=[
                _ID,
                ("version", models.PositiveIntegerField()),
                ("actor", models.CharField(max_length=150)),
                ("reason", models.TextField(blank=True)),
                ("at", models.DateTimeField()),
                ("alias", _to("registry.alias", "events")),
                ("from_release", _to("registry.release", "+", null=True)),
                ("to_release", _to("registry.release", "+", null=True)),
            ],
            options={
                "ordering": ["-version"],
                "constraints": [models.UniqueConstraint(fields=("alias", "version"), name="alias_event_once")],
            },
        ),
        migrations.RunSQL(BOTH_WAYS, ONE_WAY),
        migrations.RunSQL(REFUSE_RETIRED, REFUSE_RETIRED_UNDO),
        migrations.RunSQL(TOLD, TOLD_UNDO),
        migrations.RunSQL(
            *refuse_change(
                "registry_aliasevent", message="the history of an alias is never deleted or changed; set the alias anew"
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_alias", operations=("DELETE",), message="an alias is never deleted; clear it instead"
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_tombstone",
                when="OLD.ended_at IS NOT NULL OR to_jsonb(NEW) - ARRAY['ended_at', 'outcome'] "
                "IS DISTINCT FROM to_jsonb(OLD) - ARRAY['ended_at', 'outcome']",
                operations=("UPDATE",),
                message="a tombstone only ever ends, once",
            )
        ),
        migrations.RunSQL(
            *refuse_change("registry_tombstone", operations=("DELETE",), message="a tombstone is never deleted")
        ),
        *(
            migrations.RunSQL(
                *refuse_change(table, operations=("TRUNCATE",), message="what was recorded here is never deleted")
            )
            for table in ("registry_alias", "registry_aliasevent", "registry_tombstone")
        ),
    ]
