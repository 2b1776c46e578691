from django.apps import AppConfig


class RolloutsConfig(AppConfig):
    name = "rollouts"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from registry.holds import hold_with
        from registry.policies import check_with
        from rollouts.core.policy import parse_policy
        from rollouts.holds import holds

        check_with("rollout_policy", parse_policy)
        hold_with("rollouts", holds)
