"""REST views that take an environment out of use, and bring one back: rollouts, gate runs and gateways are asked."""

from __future__ import annotations

from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH_OR_ANY, StrictSerializer, actor_of, read_body, version_or_any
from accounts.api.responses import versioned
from accounts.api.shapes import described
from registry.queries import visible_models
from rollouts.actions.retiring import plan_removal, remove_environment, restore_environment
from serving.api.environments import EnvironmentOut
from serving.api.plans import PlannedIn, PlanOut
from serving.environments.core.reasons import LONGEST_REASON
from serving.targets.queries import get_environment, get_environment_with_routes


class RemovalOut(PlanOut):
    environment: str
    is_deleted: bool = described("nothing ever ran there; otherwise it is retired")
    says: list[str] = described("what becomes of it, and what goes with it")


class EnvironmentRestoreIn(StrictSerializer):
    reason = serializers.CharField(required=False, default="", allow_blank=True, max_length=LONGEST_REASON)


class EnvironmentRemoveIn(PlannedIn):
    is_confirmed: bool = described("needed where servers go with it", required=False, default=False)


class EnvironmentRemoveView(APIView):
    refusals: ClassVar = {"GET": {409}}

    @extend_schema(operation_id="environments_removal_plan", responses=RemovalOut)
    def get(self, request: Request, slug: str) -> Response:
        """What removing it would do now; it changes nothing. Takes an administrator."""
        return Response(RemovalOut(plan_removal(actor=actor_of(request), environment=get_environment(slug))).data)

    @extend_schema(
        operation_id="environments_remove",
        request=EnvironmentRemoveIn,
        responses=RemovalOut,
        parameters=[IF_MATCH_OR_ANY],
    )
    def post(self, request: Request, slug: str) -> Response:
        """Deletes an environment without history, else retires it and stops its servers. Takes an administrator."""
        actor, data, version = actor_of(request), read_body(EnvironmentRemoveIn, request), version_or_any(request)
        found = remove_environment(actor=actor, environment=get_environment(slug), expected_version=version, **data)
        return Response(RemovalOut(found).data)


class EnvironmentRestoreView(APIView):
    @extend_schema(
        operation_id="environments_restore",
        request=EnvironmentRestoreIn,
        responses=EnvironmentOut,
        parameters=[IF_MATCH_OR_ANY],
    )
    def post(self, request: Request, slug: str) -> Response:
        """Brings a retired environment back, with a server for each release that was stable there. Takes an administrator."""
        actor, data, version = actor_of(request), read_body(EnvironmentRestoreIn, request), version_or_any(request)
        restore_environment(actor=actor, environment=get_environment(slug), expected_version=version, **data)
        return versioned(EnvironmentOut(get_environment_with_routes(slug, visible_models(actor))))
