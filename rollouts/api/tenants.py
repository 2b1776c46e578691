"""REST view of a model's tenants and classes of requests: what each sent, and what of it was shed."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from registry.queries import visible_model
from rollouts.queries.tenants import tenants_view
from serving.targets.queries import get_environment


class TenantOut(serializers.Serializer[Any]):
    tenant = serializers.CharField(help_text="a name of the traffic policy, or others")
    quota_per_s = serializers.FloatField(allow_null=True, help_text="null: the policy names it no longer")
    requests_per_s = serializers.FloatField(help_text="all that came")
    over_quota_per_s = serializers.FloatField(help_text="refused because the tenant's quota was used up")
    shed_per_s = serializers.FloatField(help_text="refused because a release was full")
    errors_per_s = serializers.FloatField(help_text="what else failed")
    p50_ms = serializers.FloatField(allow_null=True, help_text="half of its answers came within; null: none came")
    p99_ms = serializers.FloatField(allow_null=True, help_text="99 in 100 of its answers came within")


class ClassOut(serializers.Serializer[Any]):
    name = serializers.CharField(help_text="a class of the traffic policy")
    is_default = serializers.BooleanField(help_text="requests are of it whose class nobody tells")
    share_pct = serializers.IntegerField(
        allow_null=True, help_text="of what may be in flight on a release; null: the policy names it no longer"
    )
    requests_per_s = serializers.FloatField(help_text="all that came")
    shed_per_s = serializers.FloatField(help_text="refused because the places of the class were taken")
    errors_per_s = serializers.FloatField(help_text="what else failed")
    p50_ms = serializers.FloatField(allow_null=True, help_text="half of its answers came within; null: none came")
    p99_ms = serializers.FloatField(allow_null=True, help_text="99 in 100 of its answers came within")


class TenantWarningOut(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="quotas_exceed_capacity or classes_exceed_bound")
    message = serializers.CharField()


class TenantsOut(serializers.Serializer[Any]):
    environment = serializers.CharField()
    minutes = serializers.IntegerField(
        help_text="the rates are averages over so many whole minutes, those with requests among the last five"
    )
    counted_at = serializers.DateTimeField(allow_null=True, help_text="when what gateways count was last written")
    tenants = TenantOut(many=True)
    classes = ClassOut(many=True)
    warnings = TenantWarningOut(many=True)


class TenantsView(APIView):
    @extend_schema(operation_id="tenants_read", responses=TenantsOut)
    def get(self, request: Request, slug: str, model: str) -> Response:
        actor = actor_of(request)
        found = tenants_view(visible_model(actor, model), get_environment(slug))
        return Response(TenantsOut(found).data)
