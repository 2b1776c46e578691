"""REST views of alarms, and of how each objective of a model's stable release stands."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import CharField, ChoiceField, DictField, JSONField, ModelSerializer
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH, actor_of, expected_version, read_body
from accounts.api.responses import OnePage, versioned
from accounts.api.shapes import Shape, described
from registry.queries import visible_model
from rollouts.actions import alarms as actions
from rollouts.api.bodies import ReasonIn
from rollouts.core.watch.lifecycle import AlarmState
from rollouts.core.watch.sequential_test import TIERS
from rollouts.core.watch.watched import Standing
from rollouts.models import Alarm
from rollouts.queries.alarms import alarms_for, get_alarm, watched_in
from serving.targets.queries import get_environment


class AlarmOut(ModelSerializer[Alarm]):
    """An objective of stable that burned, until it is met again or a person closes it."""

    environment = CharField(source="environment.slug")
    model = CharField(source="model.slug")
    release = CharField(source="release.name", help_text="stable when the alarm opened")
    objective = CharField(help_text="errors, slow_250ms")
    tier = ChoiceField(choices=[one.name for one in TIERS], help_text="page wakes somebody, ticket waits")
    state = ChoiceField(choices=[one.value for one in AlarmState])
    reason = CharField(help_text="cause of the alarm, or of its end")
    facts = DictField(
        child=JSONField(),
        help_text="bad, attempts, minutes, max_frac, burn (share divided by the objective), burn_peak, since",
    )
    acknowledged_by = CharField(source="acknowledged_by.username", allow_null=True, default=None)

    class Meta:
        model = Alarm
        fields = [
            "id", "environment", "model", "release", "objective", "tier", "state", "reason", "facts", "opened_at",
            "acknowledged_at", "acknowledged_by", "closed_at", "closed_by", "muted_until", "muted_by", "version",
        ]  # fmt: skip


class ObjectiveOut(Shape):
    name: str
    words: str = described("errors, slow requests (over 250 ms)")
    max_frac: float = described("share that the objective allows, in [0, 1]")
    standing: Standing = described(
        "burning: an alarm is open; met: proven since `since`; no_data: no request in the last 10 minutes"
    )
    bad: int = described("since `since`")
    attempts: int = described("since `since`")
    since: datetime | None = described("when stable was first counted; null: not yet")
    burn_5m: float | None = described("share of the last 5 minutes divided by the objective")
    burn_1h: float | None = described("share of the last hour divided by the objective")
    asked_at: datetime | None = described("last request; null: none since `since`")
    unknown_s: float = described("seconds since `since` without counts")
    alarm: int | None = described("the open alarm", source="alarm.id", default=None)


class ObjectivesPage(OnePage):
    results: list[ObjectiveOut]


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
    until: datetime = described("at most 7 days from now; nothing but the alarm's end is sent until then")


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
