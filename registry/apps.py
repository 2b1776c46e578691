from django.apps import AppConfig


class RegistryConfig(AppConfig):
    name = "registry"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from ledger.scope import models_from
        from registry.aliases import holds
        from registry.holds import hold_with
        from registry.queries import visible_models

        models_from(lambda actor: visible_models(actor).values_list("slug", flat=True))
        hold_with("aliases", holds)
