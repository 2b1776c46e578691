from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("serving", "0028_route_stable_since")]

    operations = [migrations.DeleteModel("Prefetch")]
