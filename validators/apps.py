from django.apps import AppConfig


class ValidatorsConfig(AppConfig):
    name = "validators"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from registry.hooks.policy_validators import register_policy_validator
        from registry.hooks.release_fields import register_release_fields
        from registry.hooks.usage import register_usage_source
        from validators.core.policy import checked_policy
        from validators.queries import release_fields
        from validators.queries.release_usage import release_usages

        register_policy_validator("gate_policy", checked_policy)
        register_usage_source("validators", release_usages)
        register_release_fields(release_fields.FIELDS, release_fields.meaning)
