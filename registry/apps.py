from django.apps import AppConfig


class RegistryConfig(AppConfig):
    name = "registry"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from ledger.scope import models_from
        from registry.hooks.usage import register_usage_source
        from registry.queries import visible_models
        from registry.queries.aliases import release_usages

        models_from(lambda actor: visible_models(actor).values_list("slug", flat=True))
        register_usage_source("aliases", release_usages)
