"""REST view of what a model's gate policy demands."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from registry.queries import visible_model
from validators.queries.policy_explained import demands_of


class DemandOut(serializers.Serializer[Any]):
    """A threshold of a gate."""

    gate = serializers.CharField()
    field = serializers.CharField(help_text="of the gate policy, such as load.slo_ms")
    demands = serializers.CharField(help_text="one sentence")
    certifies = serializers.CharField(help_text="what a pass says, and what it does not")
    least_s = serializers.FloatField(allow_null=True, help_text="seconds that it takes at least; null: nobody can tell")
    most_s = serializers.FloatField(allow_null=True, help_text="seconds after which it ends anyway")


class GatePolicyOut(serializers.Serializer[Any]):
    """A model's gate policy as it would judge now."""

    policy_digest = serializers.CharField()
    gate_timeout_s = serializers.FloatField(help_text="a gate that takes longer is errored")
    demands = DemandOut(many=True, help_text="in the order in which the gates run")


class GatePolicyView(APIView):
    refusals: ClassVar = {"GET": {422}}  # the model's policy cannot be read

    @extend_schema(operation_id="gate_policy_explain", responses=GatePolicyOut)
    def get(self, request: Request, slug: str) -> Response:
        """What each threshold demands, how long it takes, and what it can certify."""
        policy, demands = demands_of(visible_model(actor_of(request), slug))
        told = {"policy_digest": policy.digest, "gate_timeout_s": policy.gate_timeout_s, "demands": demands}
        return Response(GatePolicyOut(told).data)
