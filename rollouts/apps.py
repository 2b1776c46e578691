from django.apps import AppConfig


class RolloutsConfig(AppConfig):
    name = "rollouts"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from registry.hooks.outcomes import register_outcome_source
        from registry.hooks.policy_validators import register_change_guard, register_policy_validator
        from registry.hooks.release_fields import register_release_fields
        from registry.hooks.usage import register_usage_source
        from rollouts.actions.weaker_policies import refuse_weaker_model_policy
        from rollouts.core.policy_schema import check_objectives, parse_policy
        from rollouts.queries import release_outcome
        from rollouts.queries.release_usage import awaited_candidates, release_needs, release_usages
        from rollouts.queries.rolled_back import rolled_back
        from serving.targets.hooks.needs import register_need_source

        register_policy_validator("objectives", check_objectives)
        register_policy_validator("rollout_policy", parse_policy)
        register_change_guard(refuse_weaker_model_policy)
        register_usage_source("rollouts", release_usages)
        register_need_source(release_needs, awaited_candidates)
        register_outcome_source(rolled_back)
        register_release_fields(release_outcome.FIELDS, release_outcome.meaning)
