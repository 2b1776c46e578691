"""REST views of models."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api import actor_of, expected_version
from registry import actions, queries
from registry.api.answers import IF_MATCH, versioned
from registry.api.serializers import ModelChange, ModelIn, ModelOut, body_of, known_members
from registry.core.schema import Problem
from registry.core.spec import refuse


@extend_schema_view(get=extend_schema(operation_id="models_list", responses=ModelOut(many=True)))
class ModelsView(generics.ListAPIView[Any]):
    serializer_class = ModelOut
    pagination_ordering = "slug"

    def get_queryset(self) -> Any:
        return queries.visible_models(actor_of(self.request))

    @extend_schema(
        operation_id="models_create",
        request=ModelIn,
        responses={201: ModelOut, 200: OpenApiResponse(ModelOut, "it was there already")},
    )
    def post(self, request: Request) -> Response:
        body = known_members(body_of(request.data), *ModelIn().fields)
        refuse(
            "invalid_model",
            "The model",
            [
                Problem(name, "the field is missing or not text.", f"Write {name}, as text in quotes.")
                for name in ("slug", "team")
                if not isinstance(body.get(name), str)
            ],
        )
        settings = {name: body.get(name, {}) for name in ("contract", "objectives", "gate_policy", "rollout_policy")}
        actor = actor_of(request)
        was_there = queries.has_visible_model(actor, body["slug"])
        model = actions.create_model(
            actor=actor,
            slug=body["slug"],
            team=body["team"],
            title=body.get("title", ""),
            description=body.get("description", ""),
            **settings,
        )
        return Response(ModelOut(model).data, status=200 if was_there else 201)


class ModelView(APIView):
    @extend_schema(operation_id="models_read", responses=ModelOut)
    def get(self, request: Request, slug: str) -> Response:
        return versioned(ModelOut(queries.visible_model(actor_of(request), slug)))

    @extend_schema(operation_id="models_change", request=ModelChange, responses=ModelOut, parameters=[IF_MATCH])
    def patch(self, request: Request, slug: str) -> Response:
        actor = actor_of(request)
        model = queries.visible_model(actor, slug)
        changed = actions.change_model(
            actor=actor, model=model, expected_version=expected_version(request), changes=body_of(request.data)
        )
        return versioned(ModelOut(changed))
