"""The REST doors to rollouts: parse, call, shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api import StrictSerializer, actor_of, expected_version
from accounts.core.errors import NotFound
from registry.queries import get_release, visible_model, visible_models
from rollouts import actions, queries
from rollouts.models import Decision, Observation, Rollout
from serving.queries import get_environment

_IF_MATCH = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER, required=True, description="the version that was read"
)
_FILTERS = [OpenApiParameter(name, str) for name in ("model", "environment", "state")]


class StartIn(StrictSerializer):
    model = serializers.CharField()
    candidate = serializers.CharField(help_text="r2")
    environment = serializers.CharField()
    policy = serializers.JSONField(required=False, help_text="instead of the model's own; see docs/rollouts.md")
    reason = serializers.CharField(required=False, default="", allow_blank=True, max_length=2000)

    def validate_policy(self, value: Any) -> Any:
        if value is not None and not isinstance(value, dict):
            raise serializers.ValidationError('Write the policy as an object, such as {"preset": "fast"}.')
        return value


class ReasonIn(StrictSerializer):
    reason = serializers.CharField(required=False, default="", allow_blank=True, max_length=2000)


class RollbackIn(StrictSerializer):
    environment = serializers.CharField()
    reason = serializers.CharField(required=False, default="", allow_blank=True, max_length=2000)


class RolloutOut(serializers.BaseSerializer[Rollout]):
    """A row of the list."""

    def to_representation(self, instance: Rollout) -> dict[str, Any]:
        return queries.summary(instance)


class DecisionOut(serializers.BaseSerializer[Decision]):
    def to_representation(self, instance: Decision) -> dict[str, Any]:
        return queries.decision_row(instance)


class ObservationOut(serializers.ModelSerializer[Observation]):
    class Meta:
        model = Observation
        fields = ["tick", "at", "weight_bp", "candidate", "stable", "evidence", "problem"]


class RolloutsView(generics.ListAPIView[Rollout]):
    """Newest first."""

    serializer_class = RolloutOut

    def get_queryset(self) -> Any:
        given = self.request.query_params
        columns = {"model": "model__slug", "environment": "environment__slug", "state": "state"}
        wanted = {columns[name]: given[name] for name in columns if given.get(name)}
        visible = visible_models(actor_of(self.request))
        return Rollout.objects.filter(model__in=visible, **wanted).select_related(
            "model", "environment", "candidate", "stable"
        )

    @extend_schema(operation_id="rollouts_list", parameters=_FILTERS, responses={200: OpenApiTypes.OBJECT})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="rollouts_start", request=StartIn, responses={201: OpenApiTypes.OBJECT})
    def post(self, request: Request) -> Response:
        form = StartIn(data=request.data)
        form.is_valid(raise_exception=True)
        data, actor = form.validated_data, actor_of(request)
        visible_model(actor, data["model"])
        rollout = actions.start_rollout(
            actor=actor,
            candidate=get_release(data["model"], data["candidate"]),
            environment=get_environment(data["environment"]),
            policy=data.get("policy"),
            reason=data["reason"],
        )
        return _shown(rollout, status.HTTP_201_CREATED)


class RolloutView(APIView):
    @extend_schema(operation_id="rollouts_get", responses={200: OpenApiTypes.OBJECT})
    def get(self, request: Request, rollout_id: int) -> Response:
        """Everything about one rollout now: state, weights (commanded, acknowledged, observed), evidence, decisions, clock."""
        return _shown(queries.get_rollout(actor_of(request), rollout_id))


def _verb_view(verb: str) -> type[APIView]:
    """The door to one verb on a rollout; it needs `If-Match` with the version that was read."""
    act: Callable[..., Rollout] = getattr(actions, verb)

    @extend_schema(
        operation_id=f"rollouts_{verb}",
        request=ReasonIn,
        responses={200: OpenApiTypes.OBJECT},
        parameters=[_IF_MATCH],
    )
    def post(self: APIView, request: Request, rollout_id: int) -> Response:
        actor = actor_of(request)
        rollout = queries.get_rollout(actor, rollout_id)
        form = ReasonIn(data=request.data)
        form.is_valid(raise_exception=True)
        version, reason = expected_version(request), form.validated_data["reason"]
        return _shown(act(actor=actor, rollout=rollout, expected_version=version, reason=reason))

    return type(f"{verb.title()}View", (APIView,), {"post": post, "__doc__": act.__doc__})


VERB_VIEWS = {verb: _verb_view(verb) for verb in ("pause", "resume", "approve", "reject", "advance", "abort", "cancel")}


class RollbackView(APIView):
    @extend_schema(operation_id="models_rollback", request=RollbackIn, responses={200: OpenApiTypes.OBJECT})
    def post(self, request: Request, slug: str) -> Response:
        """Takes the model's traffic back to its stable release, in whatever state its rollout is. Needs no version: it only shuts."""
        actor = actor_of(request)
        form = RollbackIn(data=request.data)
        form.is_valid(raise_exception=True)
        rollout = actions.roll_back_model(
            actor=actor,
            model=visible_model(actor, slug),
            environment=get_environment(form.validated_data["environment"]),
            reason=form.validated_data["reason"],
        )
        return _shown(rollout)


class _OfRollout(generics.ListAPIView[Any]):
    def _rollout(self) -> Rollout:
        if getattr(self, "swagger_fake_view", False):
            raise NotFound("no_such_rollout", "The schema generator asks for none.")
        return queries.get_rollout(actor_of(self.request), self.kwargs["rollout_id"])


class ObservationsView(_OfRollout):
    """What each tick saw, newest first."""

    serializer_class = ObservationOut
    queryset = Observation.objects.none()

    def get_queryset(self) -> Any:
        return self._rollout().observations.all()


@extend_schema(responses={200: OpenApiTypes.OBJECT})
class DecisionsView(_OfRollout):
    """What was decided and why, newest first."""

    serializer_class = DecisionOut
    queryset = Decision.objects.none()

    def get_queryset(self) -> Any:
        return self._rollout().decisions.all()


def _shown(rollout: Rollout, code: int = status.HTTP_200_OK) -> Response:
    return Response(queries.live_view(rollout), status=code, headers={"ETag": f'"{rollout.version}"'})
