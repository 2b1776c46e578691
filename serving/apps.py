from django.apps import AppConfig


class ServingConfig(AppConfig):
    name = "serving"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from registry.holds import hold_with
        from serving.holds import holds

        hold_with("serving", holds)
