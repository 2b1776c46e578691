from django.apps import AppConfig


class ValidatorsConfig(AppConfig):
    name = "validators"
    default_auto_field = "django.db.models.BigAutoField"
