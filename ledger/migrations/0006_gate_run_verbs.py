"""Webhooks and waiting jobs follow a word: `validation` is `gate_run`. Events stay as they were written."""

from django.db import migrations

_JOBS = """
UPDATE ledger_job SET kind = '{new}', key = '{new}' || substr(key, length('{old}') + 1),
    args = jsonb_build_object('{new}', args -> '{old}')
WHERE kind = '{old}';
"""
_WEBHOOKS = """
UPDATE ledger_subscription SET verbs = (
    SELECT jsonb_agg(regexp_replace(verb, '^{old}\\.', '{new}.')) FROM jsonb_array_elements_text(verbs) verb
) WHERE EXISTS (SELECT 1 FROM jsonb_array_elements_text(verbs) verb WHERE verb LIKE '{like}.%');
"""


def _renamed(old, new):
    return _JOBS.format(old=old, new=new) + _WEBHOOKS.format(old=old, new=new, like=old.replace("_", r"\_"))


class Migration(migrations.Migration):
    dependencies = [("ledger", "0005_verbs_and_jobs")]

    operations = [migrations.RunSQL(_renamed("validation", "gate_run"), _renamed("gate_run", "validation"))]
