"""No route and no deployment begins to name a retired release, whoever writes it."""

from django.db import migrations

ROUTE = (
    "CREATE TRIGGER serving_route_refuses_retired BEFORE INSERT OR UPDATE OF stable_id, candidate_id ON serving_route "
    "FOR EACH ROW EXECUTE FUNCTION registry_refuse_retired('stable_id', 'candidate_id');"
)
DEPLOYMENT = (
    "CREATE TRIGGER serving_deployment_refuses_retired BEFORE INSERT ON serving_deployment "
    "FOR EACH ROW EXECUTE FUNCTION registry_refuse_retired('release_id');"
)


class Migration(migrations.Migration):
    dependencies = [("serving", "0002_route_mirror"), ("registry", "0007_collection_and_aliases")]

    operations = [
        migrations.RunSQL(ROUTE, "DROP TRIGGER serving_route_refuses_retired ON serving_route;"),
        migrations.RunSQL(DEPLOYMENT, "DROP TRIGGER serving_deployment_refuses_retired ON serving_deployment;"),
    ]
