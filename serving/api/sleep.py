"""REST view of whether a model may sleep, whether it does, and putting it to sleep and waking it by hand."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH_OR_ANY, PlainText, StrictSerializer, actor_of, read_body, version_or_any
from accounts.api.responses import OnePage, versioned
from ledger.core.errors import StateChanged
from registry.queries import visible_model
from serving.environments.core.reasons import LONGEST_REASON
from serving.environments.core.sleep_lifecycle import SleepRule, SleepState
from serving.targets.actions.sleeping import put_to_sleep, rule_sleep, wake_model
from serving.targets.core.sleep import LEAST_S, MOST_S
from serving.targets.queries import get_environment
from serving.targets.queries.sleep import SleepView, sleep_views

_UNLOAD = "seconds without a request after which its servers are unloaded; null: never"
_YIELD = "seconds without a request after which they are, where something else needs their room; null: for nobody"
_DEMAND = "a request wakes it; else somebody has to"


class SleepOut(serializers.Serializer[Any]):
    """A model in an environment in which it is served."""

    environment = serializers.CharField(source="sleep.environment.slug")
    version = serializers.IntegerField(source="sleep.version", help_text="for If-Match; 0: nothing was said of it")
    unload_after_s = serializers.IntegerField(source="sleep.unload_after_s", allow_null=True, help_text=_UNLOAD)
    yields_after_s = serializers.IntegerField(source="sleep.yields_after_s", allow_null=True, help_text=_YIELD)
    loads_on_demand = serializers.BooleanField(source="sleep.loads_on_demand", help_text=_DEMAND)
    reason = serializers.CharField(source="sleep.reason", allow_blank=True, help_text="what was said with the rule")
    changed_by = serializers.CharField(source="sleep.changed_by", allow_blank=True)
    state = serializers.ChoiceField([(one.value, one.value) for one in SleepState], source="sleep.state")
    state_since = serializers.DateTimeField(
        source="sleep.state_since", allow_null=True, help_text="null: it never slept"
    )
    state_reason = serializers.CharField(source="sleep.state_reason", allow_blank=True)
    state_by = serializers.CharField(source="sleep.state_by", allow_blank=True, help_text="who brought it there")
    retry_after_s = serializers.IntegerField(
        source="sleep.wake_s", help_text="while it sleeps: seconds after which callers are told to ask again"
    )
    trouble = serializers.CharField(
        source="sleep.trouble", allow_blank=True, help_text="why it does not wake or fall asleep, or stays loaded"
    )
    quiet_since = serializers.DateTimeField(
        source="sleep.quiet_since", allow_null=True, help_text="no request was counted since; null: not known"
    )
    kept_awake = serializers.CharField(allow_blank=True, help_text="why it is awake; empty where it sleeps, or may now")
    needs = serializers.ListField(child=serializers.CharField(), help_text="what keeps it awake now")
    declared_mib = serializers.IntegerField(help_text="host memory that its servers there declare together")
    measured_mib = serializers.IntegerField(
        allow_null=True, help_text="that they hold, as their agents measured last; null: none was measured"
    )


class SleepPage(OnePage):
    results = SleepOut(many=True)


class _WhereIn(StrictSerializer):
    environment = PlainText()
    reason = serializers.CharField(required=False, default="", allow_blank=True, max_length=LONGEST_REASON)


class SleepRuleIn(_WhereIn):
    """What is left out is off: it never sleeps, yields to nobody, and is loaded on demand."""

    unload_after_s = serializers.IntegerField(
        min_value=LEAST_S, max_value=MOST_S, required=False, default=None, allow_null=True, help_text=_UNLOAD
    )
    yields_after_s = serializers.IntegerField(
        min_value=LEAST_S, max_value=MOST_S, required=False, default=None, allow_null=True, help_text=_YIELD
    )
    loads_on_demand = serializers.BooleanField(required=False, default=True, help_text=_DEMAND)


class SleepWhereIn(_WhereIn):
    """The environment, and why."""


def _answer(slug: str, request: Request, environment: str) -> Response:
    model = visible_model(actor_of(request), slug)
    found: list[SleepView] = sleep_views(model, get_environment(environment))
    if not found:
        raise StateChanged("not_served", f"{slug} is not served in {environment}; a rollout brings it there.")
    return versioned(SleepOut(found[0]))


class SleepsView(APIView):
    @extend_schema(operation_id="models_sleep", responses=SleepPage)
    def get(self, request: Request, slug: str) -> Response:
        """Whether the model sleeps, in each environment in which it is served: a handful, so there is one page."""
        return Response(SleepPage({"results": sleep_views(visible_model(actor_of(request), slug))}).data)

    @extend_schema(
        operation_id="models_rule_sleep", request=SleepRuleIn, responses=SleepOut, parameters=[IF_MATCH_OR_ANY]
    )
    def post(self, request: Request, slug: str) -> Response:
        """When the model may sleep in an environment from now on. What is left out is off."""
        actor, data = actor_of(request), read_body(SleepRuleIn, request)
        model, environment = visible_model(actor, slug), get_environment(data.pop("environment"))
        reason, version = data.pop("reason"), version_or_any(request)
        rule_sleep(
            actor=actor, model=model, environment=environment, rule=SleepRule(**data), reason=reason,
            expected_version=version,
        )  # fmt: skip
        return _answer(slug, request, environment.slug)


class SleepBeginView(APIView):
    @extend_schema(operation_id="models_begin_sleep", request=SleepWhereIn, responses=SleepOut)
    def post(self, request: Request, slug: str) -> Response:
        """Puts the model to sleep: gateways answer for it, then its servers are unloaded. Asked again nothing happens."""
        actor, data = actor_of(request), read_body(SleepWhereIn, request)
        model, environment = visible_model(actor, slug), get_environment(data["environment"])
        put_to_sleep(actor=actor, model=model, environment=environment, reason=data["reason"])
        return _answer(slug, request, environment.slug)


class SleepEndView(APIView):
    @extend_schema(operation_id="models_end_sleep", request=SleepWhereIn, responses=SleepOut)
    def post(self, request: Request, slug: str) -> Response:
        """Wakes the model: its servers are loaded again. Asked again nothing happens."""
        actor, data = actor_of(request), read_body(SleepWhereIn, request)
        model, environment = visible_model(actor, slug), get_environment(data["environment"])
        wake_model(actor=actor, model=model, environment=environment, reason=data["reason"])
        return _answer(slug, request, environment.slug)
