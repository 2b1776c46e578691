"""REST view of node fit: a release on the known nodes, or on one that is described by its labels."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import ChoiceField, ValidationError
from rest_framework.views import APIView

from accounts.api.requests import StrictSerializer, actor_of, read_body
from accounts.api.responses import OnePage
from accounts.api.shapes import Shape, described
from registry.api.gpu_memory import MemoryEstimateOut
from registry.queries import visible_release
from serving.targets.queries.node_fit import fit_labels, fits_of

MOST_LABELS = 1000


class FitReason(Shape):
    field: str = described("in the envelope: accelerator.memory_mib_min")
    verdict = ChoiceField(choices=["yes", "unknown", "no"])
    message: str


class FitOut(Shape):
    """`no` only where something contradicts, `unknown` where either side does not tell."""

    verdict = ChoiceField(choices=["yes", "unknown", "no"])
    reasons: list[FitReason] = described("every check, the worst first")
    gpu_memory_estimate: MemoryEstimateOut | None = described("null: the release asks for no GPU")


class NodeFitOut(FitOut):
    node: str
    has_runtime: bool = described("whether it offers the release's runtime image and backend")
    seen_at: datetime | None
    containment: str = described("contained, not contained, or unknown")
    contained: str = described("the same as a sentence")


class NodesFitPage(OnePage):
    results: list[NodeFitOut]


class LabelsIn(StrictSerializer):
    labels: dict[str, Any | None] = described("a Kubernetes node's labels, such as nvidia.com/gpu.product")

    def validate_labels(self, value: dict[str, Any]) -> dict[str, Any]:
        if len(value) > MOST_LABELS:
            raise ValidationError(f"There are {len(value)} labels, and {MOST_LABELS} are the most.")
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
