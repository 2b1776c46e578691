import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

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


class Migration(migrations.Migration):
    dependencies = [("registry", "0001_squashed_0015_traffic_policy"), ("serving", "0028_squashed_0034_no_variants")]

    operations = [
        migrations.CreateModel(
            name="Endpoint",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
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
                        models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="endpoints", to=to),
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
        migrations.RunSQL(PUBLISH, UNPUBLISH),
        migrations.RunSQL(KEEP, LET_GO),
    ]
