"""The log can be searched: by the model that an event is about, who, what and when, and by words."""

import django.db.models.fields.json
import django.db.models.functions.text
from django.db import migrations, models

from ledger.core.words import INDEXED

# Without a list of pending entries, whose flush would hold up the writer who meets it.
WORDS = f"CREATE INDEX event_words ON ledger_event USING gin (({INDEXED})) WITH (fastupdate = off)"


class Migration(migrations.Migration):
    dependencies = [("ledger", "0007_webhooks_left")]

    operations = [
        migrations.AddField(
            model_name="event",
            name="model",
            field=models.GeneratedField(
                db_persist=True,
                expression=models.Case(
                    models.When(
                        subject_type="model",
                        then=django.db.models.functions.text.Left(models.F("subject_id"), 120),
                    ),
                    default=django.db.models.functions.text.Left(django.db.models.fields.json.KT("facts__model"), 120),
                    output_field=models.TextField(),
                ),
                output_field=models.TextField(),
            ),
        ),
        migrations.AddIndex("event", models.Index(fields=["model", "-seq"], name="event_by_model")),
        migrations.AddIndex("event", models.Index(fields=["actor", "-seq"], name="event_by_actor")),
        migrations.AddIndex("event", models.Index(fields=["verb", "-seq"], name="event_by_verb")),
        migrations.AddIndex("event", models.Index(fields=["at"], name="event_by_time")),
        migrations.RunSQL(WORDS, "DROP INDEX event_words"),
    ]
