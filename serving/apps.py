from django.apps import AppConfig


class ServingConfig(AppConfig):
    name = "serving"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from registry.hooks.code_runs import register_code_source
        from registry.hooks.usage import register_usage_source
        from serving.targets.queries.code_runs import code_runs
        from serving.targets.queries.release_usage import release_usages

        register_usage_source("serving", release_usages)
        register_code_source(code_runs)
