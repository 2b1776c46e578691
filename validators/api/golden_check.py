"""REST view of the dry check of a golden set: what it holds and can prove. Nothing is stored."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.api.shapes import Shape, described
from registry.queries import visible_model
from validators.core.ruler import Kind
from validators.queries.golden_preview import MAX_GOLDEN_SET_BYTES, preview_golden_set


class GoldenRowOut(Shape):
    id: str
    inputs: Any
    label: Any = described("a whole number or text; null: the item states what is expected")
    expected: Any = described("{output: numbers or a text}; null: the item has a label")
    slice: str


class GoldenLabelOut(Shape):
    label: str
    items: int


class CaughtOut(Shape):
    """The least share of rows that, once a release loses them, fails the golden gate in nine runs of ten; null: none does."""

    against_stable: float | None
    without_stable: float | None = described("by absolute limits alone, as for a first release")


class GoldenSliceOut(Shape):
    slice: str
    items: int
    caught: CaughtOut = described("beside the other slices that are judged")


class GoldenChangesOut(Shape):
    added: int
    removed: int
    relabelled: int
    reworded: int = described("other inputs under the same id")
    moved: int = described("to another slice")
    same: int


class GoldenCheckOut(Shape):
    """A golden set that nobody added: what it holds, and what it can prove."""

    items: int
    kind: Kind
    compare: str = described("the model's golden.compare, or the usual one of this kind")
    right_within: float | None = described("how far off a right answer may be by that; null for labels")
    own_limits: int = described("items that state a right_within of their own")
    caught: CaughtOut = described("over all items")
    rows: list[GoldenRowOut] = described("the first 20")
    labels: list[GoldenLabelOut]
    slices: list[GoldenSliceOut]
    confidence: float = described("of the model's golden gate")
    changes: GoldenChangesOut | None = described(
        "since the set in the gate policy, else the newest; null: there is none"
    )


class GoldenCheckView(APIView):
    parser_classes: list[Any] = []

    @extend_schema(
        operation_id="golden_sets_check", request={"application/jsonl": OpenApiTypes.BINARY}, responses=GoldenCheckOut
    )
    def post(self, request: Request, slug: str) -> Response:
        """JSON lines, raw: mistakes by line, or what they hold. Nothing is stored."""
        model = visible_model(actor_of(request), slug)
        found = preview_golden_set(model, request._request.read(MAX_GOLDEN_SET_BYTES + 1))
        return Response(GoldenCheckOut(found).data)
