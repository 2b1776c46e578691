"""REST views of rollouts: parse the request, call an action or query, render the answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import generics, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.actions.following import follow
from accounts.api.following import Followed
from accounts.api.requests import IF_MATCH, IF_MATCH_OR_ANY, actor_of, expected_version, read_body, version_or_any
from accounts.api.responses import versioned
from accounts.api.waiting import TIMEOUT, VERSION, status_of_wait
from accounts.core.access import Actor
from ledger.core.errors import NotFound
from registry.queries import get_release, visible_model, visible_models
from rollouts import actions, queries
from rollouts.actions.preview import preview_rollout
from rollouts.api.bodies import ApproveIn, JudgeIn, ReasonIn, RollbackIn, StartIn, SupersedeIn, SupposeIn
from rollouts.api.replay_serializers import RolloutReplayOut
from rollouts.api.serializers import (
    DecisionOut,
    ObservationOut,
    RolloutBrief,
    RolloutOut,
    RolloutPreviewOut,
)
from rollouts.core.lifecycle import FINAL, RolloutState
from rollouts.models import DecisionRecord, Observation, Rollout
from rollouts.queries.replay import replayed
from serving.targets.queries import get_environment

_REPLAY = [OpenApiParameter("preset", str, description="careful, standard, fast; without one, the model's own policy")]
_FILTERS = [OpenApiParameter(name, str) for name in ("model", "environment", "state")]


class RolloutsView(generics.ListAPIView[Rollout]):
    """Newest first."""

    serializer_class = RolloutBrief

    def get_queryset(self) -> Any:
        given = self.request.query_params
        columns = {"model": "model__slug", "environment": "environment__slug", "state": "state"}
        wanted = {columns[name]: given[name] for name in columns if given.get(name)}
        visible = visible_models(actor_of(self.request))
        return Rollout.objects.filter(model__in=visible, **wanted).select_related(
            "model", "environment", "candidate", "stable"
        )

    def paginate_queryset(self, queryset: Any) -> Any:
        return [queries.summary(rollout) for rollout in super().paginate_queryset(queryset) or []]

    @extend_schema(operation_id="rollouts_list", parameters=_FILTERS, responses=RolloutBrief(many=True))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="rollouts_start",
        request=StartIn,
        responses={
            201: RolloutOut,
            200: OpenApiResponse(RolloutOut, "one of this release under this policy is active already: this"),
        },
    )
    def post(self, request: Request) -> Response:
        data, actor = read_body(StartIn, request), actor_of(request)
        rollout, is_new = actions.find_or_start(
            actor=actor, reason=data["reason"], again=data["again"], **_named_in(actor, data)
        )
        follow(actor, RolloutRead.subject_type, rollout.pk)
        return _shown(rollout, status.HTTP_201_CREATED if is_new else status.HTTP_200_OK)


class PreviewView(APIView):
    @extend_schema(operation_id="rollouts_preview", request=SupposeIn, responses=RolloutPreviewOut)
    def post(self, request: Request) -> Response:
        """What a start would do, and warnings with codes. Creates nothing."""
        actor = actor_of(request)
        data = read_body(SupposeIn, request)
        found = preview_rollout(
            actor=actor, rate_per_s=data["rate_per_s"], again=data["again"], **_named_in(actor, data)
        )
        return Response(RolloutPreviewOut(found).data)


class RolloutRead(Followed):
    subject_type = "rollout"

    def run_end(self) -> tuple[int, datetime | None] | None:
        return queries.rollout_end(self.kwargs["rollout_id"])


class RolloutView(RolloutRead, APIView):
    @extend_schema(operation_id="rollouts_get", responses=RolloutOut)
    def get(self, request: Request, rollout_id: int) -> Response:
        """Everything about one rollout now: state, weights (commanded, acknowledged, observed), evidence, decisions, clock."""
        return _shown(queries.get_rollout(actor_of(request), rollout_id))


class RolloutWaitView(RolloutRead, APIView):
    @extend_schema(
        operation_id="rollouts_wait",
        parameters=[TIMEOUT, VERSION],
        responses={
            200: OpenApiResponse(RolloutOut, "it has ended, is stuck, or has another version than the one named"),
            202: OpenApiResponse(RolloutOut, "the time is over; this is how it stands: ask again"),
        },
    )
    def get(self, request: Request, rollout_id: int) -> Response:
        """The rollout, once it has ended. It waits on while it is paused or needs an approval: look at `state`."""
        rollout = queries.get_rollout(actor_of(request), rollout_id)
        has_ended = rollout.state in FINAL or rollout.state == RolloutState.STUCK
        return _shown(rollout, status_of_wait(request, has_ended=has_ended, version=rollout.version))


def _named_in(actor: Actor, data: dict[str, Any]) -> dict[str, Any]:
    """The release, environment and policy that a body names. Raises NotFound, also for a model that the actor may not see."""
    visible_model(actor, data["model"])
    return {
        "candidate": get_release(data["model"], data["candidate"]),
        "environment": get_environment(data["environment"]),
        "policy": data.get("policy"),
    }


def _verb_view(verb: str, form: type[ReasonIn] = ReasonIn, *, shuts: bool = False) -> type[APIView]:
    """The door to a verb on a rollout; it needs `If-Match` with the version as read, or any if it `shuts`."""
    act: Callable[..., Rollout] = getattr(actions, verb)
    version_in = version_or_any if shuts else expected_version

    @extend_schema(
        operation_id=f"rollouts_{verb}",
        request=form,
        responses=RolloutOut,
        parameters=[IF_MATCH_OR_ANY if shuts else IF_MATCH],
    )
    def post(self: APIView, request: Request, rollout_id: int) -> Response:
        actor = actor_of(request)
        rollout = queries.get_rollout(actor, rollout_id)
        data = read_body(form, request)
        return _shown(act(actor=actor, rollout=rollout, expected_version=version_in(request), **data))

    name = "".join(word.title() for word in verb.split("_"))
    return type(f"{name}View", (APIView,), {"post": post, "__doc__": act.__doc__})


#: The last part of the address → the door.
VERB_VIEWS = {
    **{verb: _verb_view(verb) for verb in ("resume", "reject", "advance")},
    **{verb: _verb_view(verb, shuts=True) for verb in ("pause", "abort", "cancel")},
    "approve": _verb_view("approve", ApproveIn),
    "promote-now": _verb_view("promote_now"),
    "close-undo-window": _verb_view("close_undo_window"),
    "roll-back": _verb_view("roll_back", shuts=True),
}


class SupersedeView(APIView):
    @extend_schema(
        operation_id="rollouts_supersede",
        request=SupersedeIn,
        responses={201: RolloutOut},
        parameters=[IF_MATCH],
    )
    def post(self, request: Request, rollout_id: int) -> Response:
        """A new rollout of another release, in the place of a rollout without traffic."""
        actor = actor_of(request)
        rollout = queries.get_rollout(actor, rollout_id)
        data = read_body(SupersedeIn, request)
        new = actions.supersede(
            actor=actor,
            rollout=rollout,
            expected_version=expected_version(request),
            candidate=get_release(rollout.model.slug, data["candidate"]),
            policy=data.get("policy"),
            reason=data["reason"],
        )
        return _shown(new, status.HTTP_201_CREATED)


class ReplayView(APIView):
    refusals: ClassVar = {"GET": {409}}

    @extend_schema(operation_id="rollouts_replay", parameters=_REPLAY, responses=RolloutReplayOut)
    def get(self, request: Request, rollout_id: int) -> Response:
        """What another policy would have decided at each tick: that of a preset, or the model's own of today."""
        preset = request.query_params.get("preset")
        return self._replayed(request, rollout_id, {"preset": preset} if preset is not None else None)

    @extend_schema(operation_id="rollouts_replay_policy", request=JudgeIn, responses=RolloutReplayOut)
    def post(self, request: Request, rollout_id: int) -> Response:
        """The same under a policy that is sent along. Changes nothing."""
        return self._replayed(request, rollout_id, read_body(JudgeIn, request)["policy"])

    def _replayed(self, request: Request, rollout_id: int, policy: dict[str, Any] | None) -> Response:
        found = replayed(queries.get_rollout(actor_of(request), rollout_id), policy)
        return Response(RolloutReplayOut(found).data)


class RollbackView(APIView):
    @extend_schema(operation_id="models_rollback", request=RollbackIn, responses=RolloutOut)
    def post(self, request: Request, slug: str) -> Response:
        """Takes the model's traffic back: its rollout's, or after a promotion that of the release before, while it is kept warm.

        Needs no version: it only shuts.
        """
        actor = actor_of(request)
        data = read_body(RollbackIn, request)
        rollout = actions.roll_back_model(
            actor=actor,
            model=visible_model(actor, slug),
            environment=get_environment(data["environment"]),
            reason=data["reason"],
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


class DecisionsView(RolloutRead, _OfRollout):
    """What was decided and why, newest first."""

    serializer_class = DecisionOut
    queryset = DecisionRecord.objects.none()

    def get_queryset(self) -> Any:
        return self._rollout().decisions.all()


def _shown(rollout: Rollout, code: int = status.HTTP_200_OK) -> Response:
    return versioned(RolloutOut(queries.view_of(rollout)), code)
