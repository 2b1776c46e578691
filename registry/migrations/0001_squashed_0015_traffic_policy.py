"""The tables of registry. Replaces the first 15 migrations: a database that applied them all skips this one."""

import uuid

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from ledger.core.triggers import refuse_change
from ledger.migrations._together import Together

REFUSE_RETIRED = """
CREATE FUNCTION registry_refuse_retired()
 RETURNS trigger
 LANGUAGE plpgsql
AS $$
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
CREATE TRIGGER registry_alias_refuses_retired BEFORE INSERT OR UPDATE OF release_id ON registry_alias FOR EACH ROW EXECUTE FUNCTION registry_refuse_retired('release_id');
"""
ALIAS_IS_TOLD = """
CREATE FUNCTION registry_alias_is_told()
 RETURNS trigger
 LANGUAGE plpgsql
AS $$
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
CREATE CONSTRAINT TRIGGER registry_alias_is_told AFTER INSERT OR UPDATE ON registry_alias DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION registry_alias_is_told();
"""
RELEASE_IS_FINAL = """
CREATE FUNCTION registry_release_is_final()
 RETURNS trigger
 LANGUAGE plpgsql
AS $$
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

    IF NEW.state IS DISTINCT FROM OLD.state AND NOT ((OLD.state = 'sealed' AND NEW.state = 'retired') OR (OLD.state = 'retired' AND NEW.state = 'sealed')) THEN
        RAISE EXCEPTION 'release % cannot go from % to %', OLD.id, OLD.state, NEW.state USING ERRCODE = '23000';
    END IF;
    IF to_jsonb(NEW) - ARRAY['state', 'version', 'retired_at'] IS DISTINCT FROM to_jsonb(OLD) - ARRAY['state', 'version', 'retired_at'] THEN
        RAISE EXCEPTION 'release % is sealed and cannot be changed; push a new release', OLD.id USING ERRCODE = '23000';
    END IF;

    RETURN NEW;
END $$;
CREATE TRIGGER registry_release_is_final BEFORE DELETE OR UPDATE ON registry_release FOR EACH ROW EXECUTE FUNCTION registry_release_is_final();
"""
RELEASEFILE_IS_FINAL = """
CREATE FUNCTION registry_releasefile_is_final()
 RETURNS trigger
 LANGUAGE plpgsql
AS $$
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
CREATE TRIGGER registry_releasefile_is_final BEFORE INSERT OR DELETE OR UPDATE ON registry_releasefile FOR EACH ROW EXECUTE FUNCTION registry_releasefile_is_final();
"""


class Migration(migrations.Migration):
    replaces = [
        ("registry", "0001_initial"),
        ("registry", "0002_release_expected_files"),
        ("registry", "0003_sealed_is_final"),
        ("registry", "0004_no_truncate"),
        ("registry", "0005_attestation"),
        ("registry", "0006_inspection"),
        ("registry", "0007_collection_and_aliases"),
        ("registry", "0008_uploads"),
        ("registry", "0009_notes_and_comments"),
        ("registry", "0010_release_with_code"),
        ("registry", "0011_release_by_digest"),
        ("registry", "0012_ownership"),
        ("registry", "0013_release_drafts"),
        ("registry", "0014_storage_plan"),
        ("registry", "0015_traffic_policy"),
    ]

    initial = True

    dependencies = [
        ("accounts", "0001_squashed_0007_tallies_found_by_index"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        Together(
            migrations.CreateModel(
                name="Blob",
                fields=[
                    ("sha256", models.CharField(max_length=64, primary_key=True, serialize=False)),
                    ("size_bytes", models.BigIntegerField()),
                    ("store_key", models.CharField(max_length=200)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    ("collected_at", models.DateTimeField(null=True)),
                    ("state", models.CharField(default="verified", max_length=12)),
                    ("problem", models.TextField(blank=True)),
                    ("part_size", models.BigIntegerField(null=True)),
                    ("part_sha256", models.JSONField(default=list)),
                ],
                options={
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("state__in", ["verified", "quarantined"])), name="blob_state_known"
                        )
                    ],
                },
            ),
            migrations.CreateModel(
                name="ServedModel",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("slug", models.SlugField(max_length=60, unique=True)),
                    ("title", models.CharField(blank=True, max_length=120)),
                    ("description", models.TextField(blank=True)),
                    ("contract", models.JSONField(default=dict)),
                    ("objectives", models.JSONField(default=dict)),
                    ("gate_policy", models.JSONField(default=dict)),
                    ("rollout_policy", models.JSONField(default=dict)),
                    ("last_number", models.PositiveIntegerField(default=0)),
                    ("version", models.PositiveIntegerField(default=1)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    ("ownership", models.JSONField(blank=True, default=dict)),
                    ("traffic_policy", models.JSONField(blank=True, default=dict)),
                    (
                        "created_by",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.SET_NULL,
                            related_name="+",
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                    (
                        "team",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="served_models",
                            to="accounts.team",
                        ),
                    ),
                ],
                options={
                    "ordering": ["slug"],
                },
            ),
            migrations.CreateModel(
                name="Release",
                fields=[
                    ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                    ("number", models.PositiveIntegerField(null=True)),
                    ("state", models.CharField(default="draft", max_length=10)),
                    ("spec", models.JSONField(default=dict)),
                    ("manifest", models.TextField(blank=True)),
                    ("digest", models.CharField(max_length=71, null=True)),
                    ("is_code_bearing", models.BooleanField(default=False)),
                    ("version", models.PositiveIntegerField(default=1)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    ("sealed_at", models.DateTimeField(null=True)),
                    ("expected_files", models.JSONField(default=list)),
                    ("retired_at", models.DateTimeField(null=True)),
                    (
                        "author",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.SET_NULL,
                            related_name="+",
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                    (
                        "model",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="releases",
                            to="registry.servedmodel",
                        ),
                    ),
                ],
                options={
                    "indexes": [
                        models.Index(fields=["model", "-number"], name="release_newest_first"),
                        models.Index(
                            condition=models.Q(("is_code_bearing", True), ("state", "sealed")),
                            fields=["sealed_at"],
                            name="release_with_code",
                        ),
                        models.Index(fields=["digest"], name="release_by_digest", opclasses=["varchar_pattern_ops"]),
                        models.Index(
                            condition=models.Q(("state", "draft")), fields=["-created_at", "id"], name="release_drafts"
                        ),
                    ],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("state__in", ["draft", "sealed", "retired"])),
                            name="release_state_known",
                        ),
                        models.UniqueConstraint(fields=("model", "number"), name="release_number_once"),
                        models.UniqueConstraint(fields=("model", "digest"), name="release_digest_once"),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("digest__isnull", True), ("number__isnull", True), ("state", "draft")),
                                models.Q(
                                    models.Q(("state", "draft"), _negated=True),
                                    ("digest__isnull", False),
                                    ("number__isnull", False),
                                    ("sealed_at__isnull", False),
                                ),
                                _connector="OR",
                            ),
                            name="release_sealed_whole",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Alias",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("name", models.CharField(max_length=40)),
                    ("version", models.PositiveIntegerField(default=1)),
                    ("changed_at", models.DateTimeField()),
                    (
                        "release",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="aliases",
                            to="registry.release",
                        ),
                    ),
                    (
                        "model",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="aliases",
                            to="registry.servedmodel",
                        ),
                    ),
                ],
                options={
                    "ordering": ["name"],
                    "constraints": [models.UniqueConstraint(fields=("model", "name"), name="alias_once")],
                },
            ),
            migrations.CreateModel(
                name="StoragePlan",
                fields=[
                    ("id", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                    ("planned_at", models.DateTimeField()),
                    ("totals", models.JSONField()),
                ],
                options={
                    "constraints": [models.CheckConstraint(condition=models.Q(("id", 1)), name="storage_has_one_plan")],
                },
            ),
            migrations.CreateModel(
                name="Tombstone",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
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
                    "indexes": [models.Index(fields=["sha256"], name="tombstone_by_sha256")],
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
                },
            ),
            migrations.CreateModel(
                name="Upload",
                fields=[
                    ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                    ("path", models.CharField(max_length=300)),
                    ("sha256", models.CharField(max_length=64)),
                    ("size_bytes", models.BigIntegerField()),
                    ("part_size", models.BigIntegerField()),
                    ("state", models.CharField(default="open", max_length=12)),
                    ("problem", models.TextField(blank=True)),
                    ("is_begun", models.BooleanField(default=False)),
                    ("store_id", models.CharField(blank=True, max_length=1024)),
                    ("is_stored", models.BooleanField(default=True)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    ("expires_at", models.DateTimeField()),
                    (
                        "created_by",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.SET_NULL,
                            related_name="+",
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                    (
                        "release",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.SET_NULL,
                            related_name="uploads",
                            to="registry.release",
                        ),
                    ),
                ],
                options={
                    "indexes": [
                        models.Index(
                            condition=models.Q(("is_stored", True)),
                            fields=["state", "expires_at"],
                            name="upload_to_sweep",
                        )
                    ],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(
                                ("state__in", ["open", "verifying", "verified", "quarantined", "aborted"])
                            ),
                            name="upload_state_known",
                        ),
                        models.UniqueConstraint(
                            condition=models.Q(("state__in", ["open", "verifying"])),
                            fields=("release", "path"),
                            name="upload_once_under_way",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="UploadPart",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("number", models.PositiveIntegerField()),
                    ("sha256", models.CharField(max_length=64)),
                    (
                        "upload",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="parts", to="registry.upload"
                        ),
                    ),
                ],
                options={
                    "constraints": [models.UniqueConstraint(fields=("upload", "number"), name="upload_part_once")]
                },
            ),
            migrations.CreateModel(
                name="Waiver",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("manifest_digest", models.CharField(max_length=71)),
                    ("kind", models.CharField(default="code", max_length=20)),
                    ("reason", models.TextField()),
                    ("granted_at", models.DateTimeField(auto_now_add=True)),
                    (
                        "granted_by",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                    (
                        "release",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="waivers", to="registry.release"
                        ),
                    ),
                ],
            ),
            migrations.CreateModel(
                name="Inspection",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("kind", models.CharField(max_length=20)),
                    ("reader", models.PositiveSmallIntegerField()),
                    ("facts", models.JSONField()),
                    (
                        "blob",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="inspections", to="registry.blob"
                        ),
                    ),
                ],
                options={
                    "constraints": [models.UniqueConstraint(fields=("blob", "kind"), name="inspection_once")],
                },
            ),
            migrations.CreateModel(
                name="Attestation",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("predicate_type", models.CharField(max_length=200)),
                    ("about", models.CharField(max_length=71)),
                    ("bundle", models.TextField()),
                    ("key_id", models.CharField(max_length=71)),
                    ("made_at", models.DateTimeField(auto_now_add=True)),
                    (
                        "release",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="attestations",
                            to="registry.release",
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(
                            fields=("release", "predicate_type", "about", "key_id"), name="attestation_once_per_key"
                        )
                    ],
                },
            ),
            migrations.CreateModel(
                name="AliasEvent",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("version", models.PositiveIntegerField()),
                    ("actor", models.CharField(max_length=150)),
                    ("reason", models.TextField(blank=True)),
                    ("at", models.DateTimeField()),
                    (
                        "alias",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="events", to="registry.alias"
                        ),
                    ),
                    (
                        "from_release",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="registry.release",
                        ),
                    ),
                    (
                        "to_release",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="registry.release",
                        ),
                    ),
                ],
                options={
                    "ordering": ["-version"],
                    "constraints": [models.UniqueConstraint(fields=("alias", "version"), name="alias_event_once")],
                },
            ),
            migrations.CreateModel(
                name="ReleaseFile",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("path", models.CharField(max_length=300)),
                    (
                        "role",
                        models.CharField(
                            choices=[
                                ("artifact", "artifact"),
                                ("tokenizer", "tokenizer"),
                                ("config", "config"),
                                ("code", "code"),
                                ("doc", "doc"),
                            ],
                            max_length=10,
                        ),
                    ),
                    (
                        "blob",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="+", to="registry.blob"
                        ),
                    ),
                    (
                        "release",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="files", to="registry.release"
                        ),
                    ),
                ],
                options={
                    "ordering": ["path"],
                    "constraints": [models.UniqueConstraint(fields=("release", "path"), name="release_path_once")],
                },
            ),
            migrations.CreateModel(
                name="ReleaseNote",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("version", models.PositiveIntegerField()),
                    ("text", models.TextField(blank=True)),
                    ("tags", models.JSONField(default=list)),
                    ("written_by", models.CharField(max_length=150)),
                    ("at", models.DateTimeField()),
                    (
                        "author",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                    (
                        "release",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="notes", to="registry.release"
                        ),
                    ),
                ],
                options={
                    "ordering": ["-version"],
                    "constraints": [models.UniqueConstraint(fields=("release", "version"), name="release_note_once")],
                },
            ),
            migrations.CreateModel(
                name="ReviewComment",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("digest", models.CharField(max_length=71)),
                    ("against_digest", models.CharField(blank=True, max_length=71)),
                    ("section", models.CharField(max_length=20)),
                    ("path", models.CharField(blank=True, max_length=300)),
                    ("side", models.CharField(default="new", max_length=3)),
                    ("line", models.PositiveIntegerField(null=True)),
                    ("text", models.TextField()),
                    ("written_by", models.CharField(max_length=150)),
                    ("at", models.DateTimeField()),
                    ("resolved_by", models.CharField(blank=True, max_length=150)),
                    ("resolved_at", models.DateTimeField(null=True)),
                    (
                        "against",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="registry.release",
                        ),
                    ),
                    (
                        "author",
                        models.ForeignKey(
                            null=True,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                    (
                        "release",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="comments", to="registry.release"
                        ),
                    ),
                ],
                options={
                    "indexes": [models.Index(fields=["release", "-id"], name="review_comment_newest_first")],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("side__in", ["old", "new"])), name="review_comment_side_known"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("resolved_at__isnull", True), ("resolved_by", "")),
                                models.Q(("resolved_at__isnull", False), models.Q(("resolved_by", ""), _negated=True)),
                                _connector="OR",
                            ),
                            name="review_comment_resolved_whole",
                        ),
                    ],
                },
            ),
        ),
        migrations.RunSQL(REFUSE_RETIRED, "DROP FUNCTION registry_refuse_retired CASCADE;"),
        migrations.RunSQL(ALIAS_IS_TOLD, "DROP FUNCTION registry_alias_is_told CASCADE;"),
        migrations.RunSQL(
            *refuse_change(
                "registry_alias", operations=("DELETE",), message="an alias is never deleted; clear it instead"
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_alias", operations=("TRUNCATE",), message="what was recorded here is never deleted"
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_aliasevent", operations=("TRUNCATE",), message="what was recorded here is never deleted"
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_aliasevent",
                operations=("UPDATE", "DELETE"),
                message="the history of an alias is never deleted or changed; set the alias anew",
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_attestation",
                operations=("TRUNCATE",),
                message="an attestation is never deleted or changed; make another one",
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_attestation",
                operations=("UPDATE", "DELETE"),
                message="an attestation is never deleted or changed; make another one",
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_blob",
                operations=("TRUNCATE",),
                message="what is sealed is never deleted; discard drafts one by one",
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_blob",
                operations=("UPDATE",),
                when="(((new.sha256)::text <> (old.sha256)::text) OR (new.size_bytes <> old.size_bytes))",
                message="a blob keeps its sha256 and size; store other bytes as another blob",
            )
        ),
        migrations.RunSQL(RELEASE_IS_FINAL, "DROP FUNCTION registry_release_is_final CASCADE;"),
        migrations.RunSQL(
            *refuse_change(
                "registry_release",
                operations=("TRUNCATE",),
                message="what is sealed is never deleted; discard drafts one by one",
            )
        ),
        migrations.RunSQL(RELEASEFILE_IS_FINAL, "DROP FUNCTION registry_releasefile_is_final CASCADE;"),
        migrations.RunSQL(
            *refuse_change(
                "registry_releasefile",
                operations=("TRUNCATE",),
                message="what is sealed is never deleted; discard drafts one by one",
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_releasenote",
                operations=("TRUNCATE",),
                message="a note is never deleted or changed; write another version",
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_releasenote",
                operations=("UPDATE", "DELETE"),
                message="a note is never deleted or changed; write another version",
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_reviewcomment",
                operations=("DELETE", "TRUNCATE"),
                message="a comment is never deleted, and changed only to resolve it once",
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_reviewcomment",
                operations=("UPDATE",),
                when="((old.resolved_at IS NOT NULL) OR ((((((((((new.release_id IS DISTINCT FROM old.release_id) OR ((new.digest)::text IS DISTINCT FROM (old.digest)::text)) OR ((new.against_digest)::text IS DISTINCT FROM (old.against_digest)::text)) OR ((new.section)::text IS DISTINCT FROM (old.section)::text)) OR ((new.path)::text IS DISTINCT FROM (old.path)::text)) OR ((new.side)::text IS DISTINCT FROM (old.side)::text)) OR (new.line IS DISTINCT FROM old.line)) OR (new.text IS DISTINCT FROM old.text)) OR ((new.written_by)::text IS DISTINCT FROM (old.written_by)::text)) OR (new.at IS DISTINCT FROM old.at)))",
                message="a comment is never deleted, and changed only to resolve it once",
            )
        ),
        migrations.RunSQL(
            *refuse_change("registry_tombstone", operations=("DELETE",), message="a tombstone is never deleted")
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_tombstone", operations=("TRUNCATE",), message="what was recorded here is never deleted"
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_tombstone",
                operations=("UPDATE",),
                when="((old.ended_at IS NOT NULL) OR ((to_jsonb(new.*) - ARRAY['ended_at'::text, 'outcome'::text]) IS DISTINCT FROM (to_jsonb(old.*) - ARRAY['ended_at'::text, 'outcome'::text])))",
                message="a tombstone only ever ends, once",
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_waiver",
                operations=("TRUNCATE",),
                message="what is sealed is never deleted; discard drafts one by one",
            )
        ),
        migrations.RunSQL(
            *refuse_change(
                "registry_waiver",
                operations=("UPDATE", "DELETE"),
                message="a waiver cannot be changed or deleted; grant another for another release",
            )
        ),
    ]
