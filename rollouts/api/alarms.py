"""REST views of alarms, and of how each objective of a model's stable release stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH, actor_of, expected_version, read_body
from accounts.api.responses import OnePage, versioned
from registry.queries import visible_model
from rollouts.actions import alarms as actions
from rollouts.api.bodies import ReasonIn
from rollouts.core.watch.lifecycle import AlarmState
from rollouts.core.watch.sequential_test import TIERS
from rollouts.core.watch.watched import Standing
from rollouts.models import Alarm
from rollouts.queries.alarms import alarms_for, get_alarm, watched_in
from serving.targets.queries import get_environment


class AlarmOut(serializers.ModelSerializer[Alarm]):
    """An objective of stable that burned, until it is met again or a person closes it."""

    environment = serializers.CharField(source="environment.slug")
    model = serializers.CharField(source="model.slug")
    release = serializers.CharField(source="release.name", help_text="stable when the alarm opened")
    objective = serializers.CharField(help_text="errors, slow_250ms")
    tier = serializers.ChoiceField(choices=[one.name for one in TIERS], help_text="page wakes somebody, ticket waits")
    state = serializers.ChoiceField(choices=[one.value for one in AlarmState])
    reason = serializers.CharField(help_text="cause of the alarm, or of its end")
    facts = serializers.DictField(
        child=serializers.JSONField(),
        help_text="bad, attempts, minutes, max_frac, burn (share divided by the objective), burn_peak, since",
    )
    acknowledged_by = serializers.CharField(source="acknowledged_by.username", allow_null=True, default=None)

    class Meta:
        model = Alarm
        fields = [
            "id", "environment", "model", "release", "objective", "tier", "state", "reason", "facts", "opened_at",
            "acknowledged_at", "acknowledged_by", "closed_at", "closed_by", "muted_until", "muted_by", "version",
        ]  # fmt: skip


class ObjectiveOut(serializers.Serializer[Any]):
    name = serializers.CharField()
    words = serializers.CharField(help_text="errors, slow requests (over 250 ms)")
    max_frac = serializers.FloatField(help_text="share that the objective allows, in [0, 1]")
    standing = serializers.ChoiceField(
        choices=[one.value for one in Standing],
        help_text="burning: an alarm is open; met: proven since `since`; no_data: no request in the last 10 minutes",
    )
    bad = serializers.IntegerField(help_text="since `since`")
    attempts = serializers.IntegerField(help_text="since `since`")
    since = serializers.DateTimeField(allow_null=True, help_text="when stable was first counted; null: not yet")
    burn_5m = serializers.FloatField(allow_null=True, help_text="share of the last 5 minutes divided by the objective")
    burn_1h = serializers.FloatField(allow_null=True, help_text="share of the last hour divided by the objective")
    asked_at = serializers.DateTimeField(allow_null=True, help_text="last request; null: none since `since`")
    unknown_s = serializers.FloatField(help_text="seconds since `since` without counts")
    alarm = serializers.IntegerField(source="alarm.id", allow_null=True, default=None, help_text="the open alarm")


class ObjectivesPage(OnePage):
    results = ObjectiveOut(many=True)


class AlarmsView(generics.ListAPIView[Alarm]):
    """Newest first."""

    serializer_class = AlarmOut

    def get_queryset(self) -> Any:
        given = self.request.query_params
        columns = {"model": "model__slug", "environment": "environment__slug", "state": "state", "tier": "tier"}
        asked = {columns[name]: given[name] for name in columns if given.get(name)}
        is_live = {"true": True, "false": False}.get(given.get("live", "").lower())
        return alarms_for(actor_of(self.request), is_live=is_live).filter(**asked)

    @extend_schema(
        operation_id="alarms_list",
        parameters=[
            *(OpenApiParameter(name, str) for name in ("model", "environment", "state", "tier")),
            OpenApiParameter("live", bool, description="true: open and acknowledged ones; false: closed ones"),
        ],
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)


class AlarmView(APIView):
    @extend_schema(operation_id="alarms_get", responses=AlarmOut)
    def get(self, request: Request, alarm_id: int) -> Response:
        return versioned(AlarmOut(get_alarm(actor_of(request), alarm_id)))


class MuteIn(ReasonIn):
    until = serializers.DateTimeField(
        help_text="at most 7 days from now; nothing but the alarm's end is sent until then"
    )


def _verb_view(verb: str) -> type[APIView]:
    act: Callable[..., Alarm] = getattr(actions, verb)
    form = MuteIn if verb == "mute" else ReasonIn

    @extend_schema(operation_id=f"alarms_{verb}", request=form, responses=AlarmOut, parameters=[IF_MATCH])
    def post(self: APIView, request: Request, alarm_id: int) -> Response:
        actor = actor_of(request)
        alarm = get_alarm(actor, alarm_id)
        data = read_body(form, request)
        return versioned(AlarmOut(act(actor=actor, alarm=alarm, expected_version=expected_version(request), **data)))

    return type(f"{verb.title()}AlarmView", (APIView,), {"post": post, "__doc__": act.__doc__})


#: The last part of the address → the view.
VERB_VIEWS = {verb: _verb_view(verb) for verb in ("acknowledge", "mute", "unmute", "close")}


class ObjectivesView(APIView):
    @extend_schema(operation_id="objectives_read", responses=ObjectivesPage)
    def get(self, request: Request, slug: str, model: str) -> Response:
        """State of each objective of the model's stable release; empty without objectives."""
        found = watched_in(get_environment(slug), visible_model(actor_of(request), model))
        return Response(ObjectivesPage({"results": found}).data)
