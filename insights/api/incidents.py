"""REST views of incidents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH, StrictSerializer, actor_of, expected_version, read_body
from accounts.api.responses import versioned
from insights.actions import incidents as actions
from insights.core.incident import IncidentState
from insights.models import Incident
from insights.queries.incidents import get_incident, incidents_for, timeline
from registry.queries import visible_model
from serving.targets.queries import get_environment


class IncidentRow(serializers.ModelSerializer[Incident]):
    """One production problem of a model in an environment."""

    environment = serializers.CharField(source="environment.slug")
    model = serializers.CharField(source="model.slug")
    release = serializers.CharField(
        source="release.name", allow_null=True, default=None, help_text="stable when it opened"
    )
    state = serializers.ChoiceField(choices=[one.value for one in IncidentState])

    class Meta:
        model = Incident
        fields = [
            "id", "environment", "model", "release", "state", "title", "opened_at", "opened_by", "closed_at", "closed_by",
            "result", "version",
        ]  # fmt: skip


class HappeningOut(serializers.Serializer[Any]):
    seq = serializers.IntegerField()
    at = serializers.DateTimeField()
    verb = serializers.CharField()
    actor = serializers.CharField()
    reason = serializers.CharField()


class IncidentOut(IncidentRow):
    kept = serializers.DictField(
        child=serializers.JSONField(),
        help_text="evidence of the moment when it opened: minutes (the last hour of traffic), alarms, replicas, log",
    )
    timeline = serializers.SerializerMethodField()

    class Meta(IncidentRow.Meta):
        fields = [*IncidentRow.Meta.fields, "kept", "timeline"]

    @extend_schema_field(HappeningOut(many=True))
    def get_timeline(self, incident: Incident) -> list[dict[str, Any]]:
        return HappeningOut(timeline(incident), many=True).data  # type: ignore[return-value]


class IncidentIn(StrictSerializer):
    model = serializers.CharField()
    environment = serializers.CharField()
    title = serializers.CharField(max_length=200, help_text="what users see, in one sentence")


class TextIn(StrictSerializer):
    reason = serializers.CharField(max_length=10_000, help_text="the note, or the result: cause and remedy")


class IncidentsView(generics.ListAPIView[Incident]):
    """Newest first."""

    serializer_class = IncidentRow

    def get_queryset(self) -> Any:
        given = self.request.query_params
        columns = {"model": "model__slug", "environment": "environment__slug", "state": "state"}
        return incidents_for(actor_of(self.request)).filter(
            **{columns[name]: given[name] for name in columns if given.get(name)}
        )

    @extend_schema(
        operation_id="incidents_list",
        parameters=[OpenApiParameter(name, str) for name in ("model", "environment", "state")],
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="incidents_open", request=IncidentIn, responses={201: IncidentOut})
    def post(self, request: Request) -> Response:
        """Opens an incident by hand. An alarm that pages opens one by itself."""
        actor, data = actor_of(request), read_body(IncidentIn, request)
        model, environment = visible_model(actor, data["model"]), get_environment(data["environment"])
        found = actions.open_incident(actor=actor, model=model, environment=environment, title=data["title"])
        return versioned(IncidentOut(found), status=201, headers={"Location": f"{request.path}/{found.pk}"})


class IncidentView(APIView):
    @extend_schema(operation_id="incidents_get", responses=IncidentOut)
    def get(self, request: Request, incident_id: int) -> Response:
        return versioned(IncidentOut(get_incident(actor_of(request), incident_id)))


def _verb_view(verb: str, act: Callable[..., Incident]) -> type[APIView]:
    @extend_schema(operation_id=f"incidents_{verb}", request=TextIn, responses=IncidentOut, parameters=[IF_MATCH])
    def post(self: APIView, request: Request, incident_id: int) -> Response:
        actor = actor_of(request)
        incident = get_incident(actor, incident_id)
        data = read_body(TextIn, request)
        return versioned(
            IncidentOut(act(actor=actor, incident=incident, expected_version=expected_version(request), **data))
        )

    return type(f"{verb.title()}IncidentView", (APIView,), {"post": post, "__doc__": act.__doc__})


#: The last part of the address → the view.
VERB_VIEWS = {"note": _verb_view("note", actions.add_note), "close": _verb_view("close", actions.close)}
