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
from validators.core.golden_preview import as_json
from validators.queries.golden_preview import MAX_GOLDEN_SET_BYTES, preview_golden_set


class GoldenRowOut(serializers.Serializer[Any]):
    id = serializers.CharField()
    inputs = serializers.JSONField()
    label = serializers.JSONField(help_text="a whole number or text")  # type: ignore[assignment]
    slice = serializers.CharField()


class GoldenLabelOut(serializers.Serializer[Any]):
    label = serializers.CharField()  # type: ignore[assignment]
    items = serializers.IntegerField()


class GoldenSliceOut(serializers.Serializer[Any]):
    slice = serializers.CharField()
    items = serializers.IntegerField()
    low = serializers.FloatField(help_text="of the interval of an accuracy of 0.9 measured on it")
    high = serializers.FloatField()


class CertainOut(serializers.Serializer[Any]):
    accuracy = serializers.FloatField(help_text="as it might be measured")
    low = serializers.FloatField(help_text="of its interval, by the golden gate's own statistic")
    high = serializers.FloatField()


class RuledOutDropOut(serializers.Serializer[Any]):
    flips_frac = serializers.FloatField(help_text="share of answers that are lost, and as many won")
    smallest_drop = serializers.FloatField(help_text="of accuracy, that so many items can rule out; 1: none")


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
    rows = GoldenRowOut(many=True, help_text="the first 20")
    labels = GoldenLabelOut(many=True)
    slices = GoldenSliceOut(many=True)
    confidence = serializers.FloatField(help_text="of the model's golden gate")
    certain = CertainOut(many=True)
    drops = RuledOutDropOut(many=True)
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
        return Response(GoldenCheckOut(as_json(found)).data)
