from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("serving", "0029_forced_door")]

    operations = [migrations.DeleteModel("Prefetch")]
