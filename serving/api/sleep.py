"""REST view of whether a model may sleep, whether it does, and putting it to sleep and waking it by hand."""

from __future__ import annotations

from datetime import datetime

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import CharField
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH_OR_ANY, PlainText, StrictSerializer, actor_of, read_body, version_or_any
from accounts.api.responses import OnePage, versioned
from accounts.api.shapes import Shape, described
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


class SleepOut(Shape):
    """A model in an environment in which it is served."""

    environment = CharField(source="sleep.environment.slug")
    version: int = described("for If-Match; 0: nothing was said of it", source="sleep.version")
    unload_after_s: int | None = described(_UNLOAD, source="sleep.unload_after_s")
    yields_after_s: int | None = described(_YIELD, source="sleep.yields_after_s")
    loads_on_demand: bool = described(_DEMAND, source="sleep.loads_on_demand")
    reason: str = described("what was said with the rule", source="sleep.reason")
    changed_by: str = described(source="sleep.changed_by")
    state: SleepState = described(source="sleep.state")
    state_since: datetime | None = described("null: it never slept", source="sleep.state_since")
    state_reason: str = described(source="sleep.state_reason")
    state_by: str = described("who brought it there", source="sleep.state_by")
    retry_after_s: int = described(
        "while it sleeps: seconds after which callers are told to ask again", source="sleep.wake_s"
    )
    trouble: str = described("why it does not wake or fall asleep, or stays loaded", source="sleep.trouble")
    quiet_since: datetime | None = described(
        "no request was counted since; null: not known", source="sleep.quiet_since"
    )
    kept_awake: str = described("why it is awake; empty where it sleeps, or may now")
    needs: list[str] = described("what keeps it awake now")
    declared_mib: int = described("host memory that its servers there declare together")
    measured_mib: int | None = described("that they hold, as their agents measured last; null: none was measured")


class SleepPage(OnePage):
    results: list[SleepOut]


class _WhereIn(StrictSerializer):
    environment = PlainText()
    reason = CharField(required=False, default="", allow_blank=True, max_length=LONGEST_REASON)


class SleepRuleIn(_WhereIn):
    """What is left out is off: it never sleeps, yields to nobody, and is loaded on demand."""

    unload_after_s: int | None = described(_UNLOAD, min_value=LEAST_S, max_value=MOST_S, required=False, default=None)
    yields_after_s: int | None = described(_YIELD, min_value=LEAST_S, max_value=MOST_S, required=False, default=None)
    loads_on_demand: bool = described(_DEMAND, required=False, default=True)


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
            actor=actor,
            model=model,
            environment=environment,
            rule=SleepRule(**data),
            reason=reason,
            expected_version=version,
        )
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
