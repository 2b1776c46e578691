"""REST view of the dry check of a golden set: what it holds and can prove. Nothing is stored."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from registry.queries import visible_model
from validators.core.ruler import Kind
from validators.queries.golden_preview import MAX_GOLDEN_SET_BYTES, preview_golden_set


class GoldenRowOut(serializers.Serializer[Any]):
    id = serializers.CharField()
    inputs = serializers.JSONField()
    label = serializers.JSONField(  # type: ignore[assignment]
        help_text="a whole number or text; null: the item states what is expected"
    )
    expected = serializers.JSONField(help_text="{output: numbers or a text}; null: the item has a label")
    slice = serializers.CharField()


class GoldenLabelOut(serializers.Serializer[Any]):
    label = serializers.CharField()  # type: ignore[assignment]
    items = serializers.IntegerField()


class CaughtOut(serializers.Serializer[Any]):
    """The least share of rows that, once a release loses them, fails the golden gate in nine runs of ten; null: none does."""

    against_stable = serializers.FloatField(allow_null=True)
    without_stable = serializers.FloatField(
        allow_null=True, help_text="by absolute limits alone, as for a first release"
    )


class GoldenSliceOut(serializers.Serializer[Any]):
    slice = serializers.CharField()
    items = serializers.IntegerField()
    caught = CaughtOut(help_text="beside the other slices that are judged")


class GoldenChangesOut(serializers.Serializer[Any]):
    added = serializers.IntegerField()
    removed = serializers.IntegerField()
    relabelled = serializers.IntegerField()
    reworded = serializers.IntegerField(help_text="other inputs under the same id")
    moved = serializers.IntegerField(help_text="to another slice")
    same = serializers.IntegerField()


class GoldenCheckOut(serializers.Serializer[Any]):
    """A golden set that nobody added: what it holds, and what it can prove."""

    items = serializers.IntegerField()
    kind = serializers.ChoiceField(choices=[kind.value for kind in Kind])
    compare = serializers.CharField(help_text="the model's golden.compare, or the usual one of this kind")
    right_within = serializers.FloatField(
        allow_null=True, help_text="how far off a right answer may be by that; null for labels"
    )
    own_limits = serializers.IntegerField(help_text="items that state a right_within of their own")
    caught = CaughtOut(help_text="over all items")
    rows = GoldenRowOut(many=True, help_text="the first 20")
    labels = GoldenLabelOut(many=True)
    slices = GoldenSliceOut(many=True)
    confidence = serializers.FloatField(help_text="of the model's golden gate")
    changes = GoldenChangesOut(
        allow_null=True, help_text="since the set in the gate policy, else the newest; null: there is none"
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
