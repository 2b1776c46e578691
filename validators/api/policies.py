"""REST view of what a model's gate policy demands."""

from __future__ import annotations

from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.api.shapes import Shape, described
from registry.queries import visible_model
from validators.queries.policy_explained import demands_of


class DemandOut(Shape):
    """A threshold of a gate."""

    gate: str
    field: str = described("of the gate policy, such as load.slo_ms")
    demands: str = described("one sentence")
    certifies: str = described("what a pass says, and what it does not")
    least_s: float | None = described("seconds that it takes at least; null: nobody can tell")
    most_s: float | None = described("seconds after which it ends anyway")


class GatePolicyOut(Shape):
    """A model's gate policy as it would judge now."""

    policy_digest: str
    gate_timeout_s: float = described("a gate that takes longer is errored")
    demands: list[DemandOut] = described("in the order in which the gates run")


class GatePolicyView(APIView):
    refusals: ClassVar = {"GET": {422}}  # the model's policy cannot be read

    @extend_schema(operation_id="gate_policy_explain", responses=GatePolicyOut)
    def get(self, request: Request, slug: str) -> Response:
        """What each threshold demands, how long it takes, and what it can certify."""
        policy, demands = demands_of(visible_model(actor_of(request), slug))
        told = {"policy_digest": policy.digest, "gate_timeout_s": policy.gate_timeout_s, "demands": demands}
        return Response(GatePolicyOut(told).data)
