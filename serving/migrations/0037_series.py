"""Endpoints and kept series; and new names in Python alone: tables and columns of replicas keep theirs."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q
from django.db.models.deletion import CASCADE, PROTECT

from ledger.migrations._together import Together

#: Publishes one deployment with its newest server that runs. The last endpoint of a release in an environment stays as `gone`.
PUBLISH = """
CREATE FUNCTION serving_publish(which bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  said record;
BEGIN
  PERFORM 1 FROM serving_endpoint WHERE replica = which::text FOR NO KEY UPDATE;  -- what is read next is what others wrote by then
  SELECT d.environment_id, d.release_id, d.node_id, d.state, d.reason, server.host, server.http_port, server.grpc_port,
         coalesce(server.is_serving, false) AS is_serving, coalesce(server.probed_at IS NOT NULL, false) AS was_well,
         NOT d.is_wanted AS is_leaving, d.is_set_aside, server.started_at,
         coalesce(server.drift <> '[]'::jsonb, false) AS has_drifted,
         EXISTS (SELECT FROM serving_listedserver listed WHERE listed.node_id = d.node_id) AS is_shared,
         ARRAY(SELECT id FROM registry_release WHERE model_id = (SELECT model_id FROM registry_release WHERE id = d.release_id)) AS siblings
    INTO said
    FROM serving_deployment d
    LEFT JOIN LATERAL (
      SELECT * FROM serving_server WHERE deployment_id = d.id AND ended_at IS NULL ORDER BY id DESC LIMIT 1
    ) server ON d.state <> 'gone'
   WHERE d.id = which;
  IF NOT FOUND THEN
    DELETE FROM serving_endpoint WHERE replica = which::text;
    RETURN;
  END IF;
  -- An address belongs to the server that began there last. A server that its owner runs serves one release of each of many models.
  IF said.is_serving THEN
    said.is_serving := NOT EXISTS (
      SELECT FROM serving_endpoint other WHERE other.is_serving AND other.node_id = said.node_id AND other.host = said.host
         AND other.http_port = said.http_port AND other.replica <> which::text AND other.since > said.started_at
         AND (NOT said.is_shared OR other.release_id = ANY(said.siblings)));
    UPDATE serving_endpoint SET is_serving = false
     WHERE said.is_serving AND is_serving AND node_id = said.node_id AND host = said.host AND http_port = said.http_port
       AND replica <> which::text AND (NOT said.is_shared OR release_id = ANY(said.siblings));
  END IF;
  INSERT INTO serving_endpoint AS known (environment_id, release_id, replica, node_id, state, why, host, http_port, grpc_port,
                                is_serving, was_well, is_leaving, is_set_aside, since, has_drifted)
  VALUES (said.environment_id, said.release_id, which::text, said.node_id, said.state, said.reason, said.host, said.http_port,
          said.grpc_port, said.is_serving, said.was_well, said.is_leaving,
          said.is_set_aside, said.started_at, said.has_drifted)
  ON CONFLICT (replica) DO UPDATE
     SET node_id = EXCLUDED.node_id, state = EXCLUDED.state, why = EXCLUDED.why, host = EXCLUDED.host,
         http_port = EXCLUDED.http_port, grpc_port = EXCLUDED.grpc_port, is_serving = EXCLUDED.is_serving,
         was_well = EXCLUDED.was_well, is_leaving = EXCLUDED.is_leaving,
         is_set_aside = EXCLUDED.is_set_aside, since = EXCLUDED.since,
         has_drifted = EXCLUDED.has_drifted;
  DELETE FROM serving_endpoint
   WHERE environment_id = said.environment_id AND release_id = said.release_id AND state = 'gone' AND replica <> which::text;
END $$;
CREATE FUNCTION serving_deployment_is_published() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM serving_publish(coalesce(NEW.id, OLD.id));
  RETURN NULL;
END $$;
CREATE FUNCTION serving_server_is_published() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM serving_publish(coalesce(NEW.deployment_id, OLD.deployment_id));
  RETURN NULL;
END $$;
CREATE TRIGGER serving_deployment_is_published AFTER INSERT OR DELETE OR UPDATE OF
  state, reason, node_id, is_wanted, is_set_aside ON serving_deployment
  FOR EACH ROW EXECUTE FUNCTION serving_deployment_is_published();
CREATE TRIGGER serving_server_is_published AFTER INSERT OR DELETE ON serving_server
  FOR EACH ROW EXECUTE FUNCTION serving_server_is_published();
CREATE TRIGGER serving_server_is_published_again AFTER UPDATE ON serving_server FOR EACH ROW
  WHEN ((OLD.host, OLD.http_port, OLD.grpc_port, OLD.is_serving, OLD.ended_at, OLD.drift, OLD.started_at, OLD.probed_at IS NULL)
        IS DISTINCT FROM
        (NEW.host, NEW.http_port, NEW.grpc_port, NEW.is_serving, NEW.ended_at, NEW.drift, NEW.started_at, NEW.probed_at IS NULL))
  EXECUTE FUNCTION serving_server_is_published();
SELECT serving_publish(id) FROM serving_deployment ORDER BY id;
"""
UNPUBLISH = """
DROP TRIGGER serving_server_is_published_again ON serving_server;
DROP TRIGGER serving_server_is_published ON serving_server;
DROP TRIGGER serving_deployment_is_published ON serving_deployment;
DROP FUNCTION serving_server_is_published(), serving_deployment_is_published();
DROP FUNCTION serving_publish(bigint);
"""
#: What was sealed is never overwritten; and no will takes the last server that answers from a stable release that users reach.
KEEP = """
CREATE FUNCTION serving_endpoint_is_of_one_release() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'endpoint % serves another release or environment: it needs a row of its own', OLD.replica
    USING ERRCODE = 'check_violation', CONSTRAINT = 'endpoint_is_of_one_release';
END $$;
CREATE TRIGGER serving_endpoint_is_of_one_release BEFORE UPDATE ON serving_endpoint FOR EACH ROW
  WHEN ((OLD.environment_id, OLD.release_id, OLD.replica) IS DISTINCT FROM (NEW.environment_id, NEW.release_id, NEW.replica))
  EXECUTE FUNCTION serving_endpoint_is_of_one_release();
CREATE FUNCTION serving_endpoint_keeps_stable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM serving_route route JOIN serving_environment environment ON environment.id = route.environment_id
              WHERE route.environment_id = NEW.environment_id AND route.stable_id = NEW.release_id
                AND environment.retired_at IS NULL
                AND NOT EXISTS (SELECT FROM serving_sleep sleep WHERE sleep.environment_id = route.environment_id
                                   AND sleep.model_id = route.model_id AND sleep.state <> 'awake'))
     AND NOT EXISTS (SELECT FROM serving_endpoint other WHERE other.environment_id = NEW.environment_id
                        AND other.release_id = NEW.release_id AND other.is_serving AND NOT other.is_leaving
                        AND NOT other.is_set_aside)
     AND EXISTS (SELECT FROM serving_endpoint WHERE id = NEW.id AND (is_leaving OR is_set_aside)) THEN
    RAISE EXCEPTION 'endpoint % is the last that answers of a stable release', NEW.replica
      USING ERRCODE = 'check_violation', CONSTRAINT = 'endpoint_keeps_stable';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER serving_endpoint_keeps_stable AFTER UPDATE ON serving_endpoint DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN (OLD.is_serving AND NOT (OLD.is_leaving OR OLD.is_set_aside) AND (NEW.is_leaving OR NEW.is_set_aside))
  EXECUTE FUNCTION serving_endpoint_keeps_stable();
"""
LET_GO = """
DROP TRIGGER serving_endpoint_keeps_stable ON serving_endpoint;
DROP TRIGGER serving_endpoint_is_of_one_release ON serving_endpoint;
DROP FUNCTION serving_endpoint_keeps_stable(), serving_endpoint_is_of_one_release();
"""
ONCE = "deployment_once_in_its_slot"
#: Django makes no partitions. There is no default partition: a row without one is refused, and a part can be detached.
TABLES = """
CREATE TABLE serving_seriesminute (
  series_id integer NOT NULL, at timestamptz NOT NULL, fence bigint NOT NULL, known_s double precision NOT NULL,
  counts integer[] NOT NULL, PRIMARY KEY (series_id, at, fence)
) PARTITION BY RANGE (at);
CREATE TABLE serving_seriesblock (
  series_id integer NOT NULL, at timestamptz NOT NULL, packed bytea NOT NULL, PRIMARY KEY (series_id, at)
) PARTITION BY RANGE (at);
CREATE INDEX serving_seriesblock_at ON serving_seriesblock USING brin (at) WITH (pages_per_range = 8);
CREATE INDEX serving_seriesminute_at ON serving_seriesminute USING brin (at) WITH (pages_per_range = 8);
CREATE TABLE serving_serieshour (
  series_id integer NOT NULL, at timestamptz NOT NULL, known_s double precision NOT NULL, counts bigint[] NOT NULL,
  PRIMARY KEY (series_id, at)
) PARTITION BY RANGE (at);
"""
NO_TABLES = "DROP TABLE serving_seriesminute, serving_seriesblock, serving_serieshour"
#: Services work with rows alone; these make and drop parts of the three tables, and no others, as the tables' owner.
FUNCTIONS = """
CREATE FUNCTION serving_make_part(parent regclass, first date, after date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE part text := parent || '_' || to_char(first, 'YYYYMMDD');
BEGIN
  IF parent::text NOT IN ('serving_seriesminute', 'serving_seriesblock', 'serving_serieshour') THEN
    RAISE EXCEPTION '% keeps no series', parent;
  END IF;
  IF to_regclass('public.' || part) IS NOT NULL THEN RETURN false; END IF;
  EXECUTE format(
    'CREATE TABLE IF NOT EXISTS public.%I PARTITION OF %s FOR VALUES FROM (%L) TO (%L)',
    part, parent, first || ' 00:00Z', after || ' 00:00Z'
  );
  RETURN true;
END $$;
CREATE FUNCTION serving_drop_part(parent regclass, first date) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE part text := parent || '_' || to_char(first, 'YYYYMMDD');
BEGIN
  IF parent::text NOT IN ('serving_seriesminute', 'serving_seriesblock', 'serving_serieshour') THEN
    RAISE EXCEPTION '% keeps no series', parent;
  END IF;
  EXECUTE format('ALTER TABLE %s DETACH PARTITION public.%I', parent, part);
  EXECUTE format('DROP TABLE public.%I', part);
END $$;
"""
NO_FUNCTIONS = """
DROP FUNCTION serving_make_part(regclass, date, date);
DROP FUNCTION serving_drop_part(regclass, date);
"""


def _partitioned(name, *keys, **columns):
    of = {"db_constraint": False, "db_index": False, "on_delete": django.db.models.deletion.DO_NOTHING}
    key = models.CompositePrimaryKey(*keys, blank=True, editable=False, primary_key=True, serialize=False)
    fields = [
        ("pk", key),
        ("series", models.ForeignKey(to="serving.trafficseries", **of)),
        ("at", models.DateTimeField()),
        *columns.items(),
    ]
    return migrations.CreateModel(name=name, fields=fields)


class Migration(migrations.Migration):
    dependencies = [("registry", "0002_diet"), ("serving", "0028_squashed_0034_no_variants")]

    operations = [
        Together(
            migrations.CreateModel(
                name="Endpoint",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("replica", models.CharField(max_length=200, unique=True)),
                    ("state", models.CharField(max_length=10)),
                    ("why", models.TextField(blank=True, db_default="", default="")),
                    ("host", models.CharField(max_length=120, null=True)),
                    ("http_port", models.PositiveIntegerField(null=True)),
                    ("grpc_port", models.PositiveIntegerField(null=True)),
                    *(
                        (name, models.BooleanField(db_default=False, default=False))
                        for name in ("is_serving", "was_well", "is_leaving", "is_set_aside", "has_drifted")
                    ),
                    ("since", models.DateTimeField(null=True)),
                    *(
                        (
                            name,
                            models.ForeignKey(
                                on_delete=django.db.models.deletion.CASCADE, related_name="endpoints", to=to
                            ),
                        )
                        for name, to in (
                            ("environment", "serving.environment"),
                            ("node", "serving.node"),
                            ("release", "registry.release"),
                        )
                    ),
                ],
                options={
                    "indexes": [models.Index(fields=["release", "environment"], name="endpoint_of_release")],
                    "constraints": [
                        models.CheckConstraint(
                            condition=Q(
                                state__in=[
                                    "pending",
                                    "fetching",
                                    "loading",
                                    "warming",
                                    "ready",
                                    "draining",
                                    "failed",
                                    "gone",
                                ]
                            ),
                            name="endpoint_state_known",
                        ),
                        models.CheckConstraint(
                            condition=Q(is_serving=False)
                            | Q(host__isnull=False, http_port__isnull=False, grpc_port__isnull=False),
                            name="endpoint_serves_at_an_address",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="TrafficSeries",
                fields=[
                    ("id", models.AutoField(primary_key=True, serialize=False)),
                    ("release", models.CharField(blank=True, max_length=71)),
                    ("replica", models.CharField(blank=True, max_length=200)),
                    ("tenant", models.CharField(blank=True, max_length=120)),
                    ("names", django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), size=None)),
                    *(
                        (
                            name,
                            models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to=to),
                        )
                        for name, to in (("environment", "serving.environment"), ("model", "registry.servedmodel"))
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(
                            fields=["environment", "model", "release", "replica", "tenant", "names"], name="series_once"
                        )
                    ]
                },
            ),
            migrations.SeparateDatabaseAndState(
                state_operations=[
                    migrations.AlterModelTable("deployment", "serving_deployment"),
                    migrations.AlterModelTable("scale", "serving_scale"),
                    migrations.AlterField(
                        "deployment", "slot", models.PositiveSmallIntegerField(default=0, db_column="slot")
                    ),
                    migrations.AlterField(
                        "server",
                        "deployment",
                        models.ForeignKey(
                            "serving.deployment", CASCADE, related_name="servers", db_column="deployment_id"
                        ),
                    ),
                    migrations.RemoveConstraint("deployment", ONCE),
                    migrations.RenameModel("Deployment", "Replica"),
                    migrations.RenameModel("Scale", "ReplicaTarget"),
                    migrations.RenameField("replica", "slot", "ordinal"),
                    migrations.RenameField("server", "deployment", "replica"),
                    migrations.AddConstraint(
                        "replica",
                        models.UniqueConstraint(
                            fields=["release", "environment", "ordinal"],
                            condition=models.Q(
                                state__in=["draining", "failed", "fetching", "loading", "ready", "warming"],
                                is_wanted=True,
                                drain_asked_at=None,
                            ),
                            name=ONCE,
                        ),
                    ),
                    *(
                        migrations.AlterField("replica", name, models.ForeignKey(to, PROTECT, related_name="replicas"))
                        for name, to in (
                            ("release", "registry.release"),
                            ("environment", "serving.environment"),
                            ("node", "serving.node"),
                        )
                    ),
                    *(
                        migrations.AlterField(
                            "replicatarget", name, models.ForeignKey(to, CASCADE, related_name="replica_targets")
                        )
                        for name, to in (("release", "registry.release"), ("environment", "serving.environment"))
                    ),
                    _partitioned(
                        "SeriesMinute",
                        "series",
                        "at",
                        "fence",
                        fence=models.BigIntegerField(),
                        known_s=models.FloatField(),
                        counts=django.contrib.postgres.fields.ArrayField(base_field=models.IntegerField(), size=None),
                    ),
                    _partitioned("SeriesBlock", "series", "at", packed=models.BinaryField()),
                    _partitioned(
                        "SeriesHour",
                        "series",
                        "at",
                        known_s=models.FloatField(),
                        counts=django.contrib.postgres.fields.ArrayField(
                            base_field=models.BigIntegerField(), size=None
                        ),
                    ),
                ]
            ),
        ),
        *(
            migrations.RunSQL(do, undo)
            for do, undo in ((PUBLISH, UNPUBLISH), (KEEP, LET_GO), (TABLES, NO_TABLES), (FUNCTIONS, NO_FUNCTIONS))
        ),
    ]
