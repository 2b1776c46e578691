from django.apps import AppConfig


class ValidatorsConfig(AppConfig):
    name = "validators"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from registry.holds import hold_with
        from registry.policies import check_with
        from validators.core.policy import parse_policy
        from validators.holds import holds

        check_with("gate_policy", parse_policy)
        hold_with("validators", holds)
