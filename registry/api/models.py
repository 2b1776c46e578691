"""REST views of models."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH, actor_of, expected_version, read_body
from accounts.api.responses import versioned
from registry import actions, queries
from registry.api.serializers import ModelChange, ModelIn, ModelOut


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
        actor, said = actor_of(request), read_body(ModelIn, request)
        model, is_new = actions.create_model(actor=actor, **said)
        return Response(ModelOut(model).data, status=201 if is_new else 200)


class ModelView(APIView):
    @extend_schema(operation_id="models_read", responses=ModelOut)
    def get(self, request: Request, slug: str) -> Response:
        return versioned(ModelOut(queries.visible_model(actor_of(request), slug)))

    @extend_schema(operation_id="models_change", request=ModelChange, responses=ModelOut, parameters=[IF_MATCH])
    def patch(self, request: Request, slug: str) -> Response:
        actor = actor_of(request)
        model = queries.visible_model(actor, slug)
        changed = actions.change_model(
            actor=actor,
            model=model,
            expected_version=expected_version(request),
            changes=read_body(ModelChange, request),
        )
        return versioned(ModelOut(changed))
