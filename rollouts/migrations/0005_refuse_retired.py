"""No rollout begins with a retired release, whoever writes it."""

from django.db import migrations

ROLLOUT = (
    "CREATE TRIGGER rollouts_rollout_refuses_retired BEFORE INSERT ON rollouts_rollout "
    "FOR EACH ROW EXECUTE FUNCTION registry_refuse_retired('candidate_id', 'stable_id');"
)


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0004_evidence_in_full"), ("registry", "0007_collection_and_aliases")]

    operations = [migrations.RunSQL(ROLLOUT, "DROP TRIGGER rollouts_rollout_refuses_retired ON rollouts_rollout;")]
