from django.apps import AppConfig


class RegistryConfig(AppConfig):
    name = "registry"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from registry.hooks.usage import register_usage_source
        from registry.queries.aliases import release_usages

        register_usage_source("aliases", release_usages)
