"""REST view of the capabilities: every server kind, backend, platform and GPU part with its state."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import ChoiceField
from rest_framework.views import APIView

from accounts.api.responses import OnePage
from accounts.api.shapes import Shape, described
from registry.adapters.capability_evidence import capabilities
from registry.core.capabilities import KINDS, MEANINGS, State


class StateField(ChoiceField):
    """`run`, `run on a GPU`, `from documents` or `never run`."""

    def __init__(self, **options: Any) -> None:
        told = "; ".join(f"{state}: {meaning}" for state, meaning in MEANINGS.items())
        super().__init__(**{"choices": [str(state) for state in State], "help_text": told, **options})


class CapabilityOut(Shape):
    """One row of the table of capabilities."""

    id: str = described("kind:name, such as server:triton")
    kind = ChoiceField(choices=list(KINDS))
    name: str
    scope: str = described("the use that the state covers")
    instead: str = described("the substitute that tests ran, or the gap; empty if it was run")
    state = StateField()
    tests: list[str] = described("test files that showed it on the real part")
    shown_at: datetime | None
    version: str | None = described("version of Sluicegate that the tests ran")
    card: str | None = described("GPU of the GPU proof, if that proved it")


class CapabilitiesPage(OnePage):
    results: list[CapabilityOut]


class CapabilitiesView(APIView):
    @extend_schema(operation_id="capabilities_list", responses=CapabilitiesPage)
    def get(self, request: Request) -> Response:
        """Every server kind, backend, platform and GPU part, with its state. One page."""
        return Response(CapabilitiesPage({"results": capabilities()}).data)
