from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("serving", "0033_no_cordon")]

    operations = [migrations.DeleteModel("Variant")]
