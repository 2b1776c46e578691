"""REST view of the capabilities: every server kind, backend, platform and GPU part with its state."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.responses import OnePage
from registry.adapters.capability_evidence import capabilities
from registry.core.capabilities import KINDS, MEANINGS, State


class StateField(serializers.ChoiceField):
    """`run`, `run on a GPU`, `from documents` or `never run`."""

    def __init__(self, **options: Any) -> None:
        told = "; ".join(f"{state}: {meaning}" for state, meaning in MEANINGS.items())
        super().__init__(**{"choices": [str(state) for state in State], "help_text": told, **options})


class CapabilityOut(serializers.Serializer[Any]):
    """One row of the table of capabilities."""

    id = serializers.CharField(help_text="kind:name, such as server:triton")
    kind = serializers.ChoiceField(choices=list(KINDS))
    name = serializers.CharField()
    scope = serializers.CharField(help_text="the use that the state covers")
    instead = serializers.CharField(help_text="the substitute that tests ran, or the gap; empty if it was run")
    state = StateField()
    tests = serializers.ListField(child=serializers.CharField(), help_text="test files that showed it on the real part")
    shown_at = serializers.DateTimeField(allow_null=True)
    version = serializers.CharField(allow_null=True, help_text="version of Sluicegate that the tests ran")
    card = serializers.CharField(allow_null=True, help_text="GPU of the GPU proof, if that proved it")


class CapabilitiesPage(OnePage):
    results = CapabilityOut(many=True)


class CapabilitiesView(APIView):
    @extend_schema(operation_id="capabilities_list", responses=CapabilitiesPage)
    def get(self, request: Request) -> Response:
        """Every server kind, backend, platform and GPU part, with its state. One page."""
        return Response(CapabilitiesPage({"results": capabilities()}).data)
