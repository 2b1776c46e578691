"""REST view of node fit: a release on the known nodes, or on one that is described by its labels."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import StrictSerializer, actor_of, read_body
from accounts.api.responses import OnePage
from registry.api.gpu_memory import MemoryEstimateOut
from registry.queries import visible_release
from serving.targets.queries.node_fit import fit_labels, fits_of

MOST_LABELS = 1000


class FitReason(serializers.Serializer[Any]):
    field = serializers.CharField(help_text="in the envelope: accelerator.memory_mib_min")
    verdict = serializers.ChoiceField(choices=["yes", "unknown", "no"])
    message = serializers.CharField()


class FitOut(serializers.Serializer[Any]):
    """`no` only where something contradicts, `unknown` where either side does not tell."""

    verdict = serializers.ChoiceField(choices=["yes", "unknown", "no"])
    reasons = FitReason(many=True, help_text="every check, the worst first")
    gpu_memory_estimate = MemoryEstimateOut(allow_null=True, help_text="null: the release asks for no GPU")


class NodeFitOut(FitOut):
    node = serializers.CharField()
    has_runtime = serializers.BooleanField(help_text="whether it offers the release's runtime image and backend")
    seen_at = serializers.DateTimeField(allow_null=True)
    containment = serializers.CharField(help_text="contained, not contained, or unknown")
    contained = serializers.CharField(help_text="the same as a sentence")


class NodesFitPage(OnePage):
    results = NodeFitOut(many=True)


class LabelsIn(StrictSerializer):
    labels = serializers.DictField(
        child=serializers.JSONField(allow_null=True),
        help_text="a Kubernetes node's labels, such as nvidia.com/gpu.product",
    )

    def validate_labels(self, value: dict[str, Any]) -> dict[str, Any]:
        if len(value) > MOST_LABELS:
            raise serializers.ValidationError(f"There are {len(value)} labels, and {MOST_LABELS} are the most.")
        return value


class FitView(APIView):
    @extend_schema(operation_id="releases_fit", responses=NodesFitPage)
    def get(self, request: Request, slug: str, name: str) -> Response:
        """Whether the release fits each node: a handful, so there is one page."""
        found = fits_of(visible_release(actor_of(request), slug, name))
        return Response(NodesFitPage({"results": found}).data)

    @extend_schema(operation_id="releases_fit_labels", request=LabelsIn, responses=FitOut)
    def post(self, request: Request, slug: str, name: str) -> Response:
        """Whether the release fits a node with these labels."""
        release = visible_release(actor_of(request), slug, name)
        labels = read_body(LabelsIn, request)["labels"]
        return Response(FitOut(fit_labels(release, labels).as_json()).data)
