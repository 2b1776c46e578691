"""REST view of the headers of a release's files."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.api.responses import OnePage
from accounts.api.shapes import Shape, described
from registry import queries
from registry.queries.file_headers import headers_of

#: Tensors that one answer lists.
MOST_TENSORS = 20_000


class HeaderOut(Shape):
    """A file's header. Which facts there are depends on the kind."""

    path: str
    kind: str = described("safetensors, onnx, gguf, tensorrt, torchscript, json, pickle, text, …")
    facts: Any = described(
        "tensors [[name, data type, shape]], inputs, outputs, metadata, imports, …; an answer "
        f"lists {MOST_TENSORS} tensors, and tensors_left_off counts the others of a file"
    )


class HeadersPage(OnePage):
    results: list[HeaderOut]


class HeadersView(APIView):
    @extend_schema(operation_id="releases_headers", responses=HeadersPage)
    def get(self, request: Request, slug: str, name: str) -> Response:
        """The header of every file that has one: all of a release's files, so there is one page."""
        found = headers_of(queries.visible_release(actor_of(request), slug, name))
        room, rows = MOST_TENSORS, []
        for path, facts in found.items():
            tensors = facts.get("tensors", [])
            if len(tensors) > room:
                facts = {**facts, "tensors": tensors[:room], "tensors_left_off": len(tensors) - room}
            room -= min(room, len(tensors))
            rows.append({"path": path, "kind": facts.pop("kind"), "facts": facts})
        return Response(HeadersPage({"results": rows}).data)
