"""REST view of a model's tenants and classes of requests: what each sent, and what of it was shed."""

from __future__ import annotations

from datetime import datetime

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.api.shapes import Shape, described
from registry.queries import visible_model
from rollouts.queries.tenants import tenants_view
from serving.targets.queries import get_environment


class TenantOut(Shape):
    tenant: str = described("a name of the traffic policy, or others")
    quota_per_s: float | None = described("null: the policy names it no longer")
    requests_per_s: float = described("all that came")
    over_quota_per_s: float = described("refused because the tenant's quota was used up")
    shed_per_s: float = described("refused because a release was full")
    errors_per_s: float = described("what else failed")
    p50_ms: float | None = described("half of its answers came within; null: none came")
    p99_ms: float | None = described("99 in 100 of its answers came within")


class ClassOut(Shape):
    name: str = described("a class of the traffic policy")
    is_default: bool = described("requests are of it whose class nobody tells")
    share_pct: int | None = described("of what may be in flight on a release; null: the policy names it no longer")
    requests_per_s: float = described("all that came")
    shed_per_s: float = described("refused because the places of the class were taken")
    errors_per_s: float = described("what else failed")
    p50_ms: float | None = described("half of its answers came within; null: none came")
    p99_ms: float | None = described("99 in 100 of its answers came within")


class TenantWarningOut(Shape):
    code: str = described("quotas_exceed_capacity or classes_exceed_bound")
    message: str


class TenantsOut(Shape):
    environment: str
    minutes: int = described(
        "the rates are averages over so many whole minutes, those with requests among the last five"
    )
    counted_at: datetime | None = described("when what gateways count was last written")
    tenants: list[TenantOut]
    classes: list[ClassOut]
    warnings: list[TenantWarningOut]


class TenantsView(APIView):
    @extend_schema(operation_id="tenants_read", responses=TenantsOut)
    def get(self, request: Request, slug: str, model: str) -> Response:
        actor = actor_of(request)
        found = tenants_view(visible_model(actor, model), get_environment(slug))
        return Response(TenantsOut(found).data)
