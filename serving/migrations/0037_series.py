import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

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
    dependencies = [("registry", "0002_diet"), ("serving", "0036_replica")]

    operations = [
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
            database_operations=[migrations.RunSQL(TABLES, NO_TABLES), migrations.RunSQL(FUNCTIONS, NO_FUNCTIONS)],
            state_operations=[
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
                    counts=django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), size=None),
                ),
            ],
        ),
    ]
