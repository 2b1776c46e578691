"""Answers that several views give: one with its version, and a list that has one page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

from accounts.api.shapes import Shape, described


def versioned(serializer: BaseSerializer[Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The answer, with the version that `If-Match` wants as its ETag."""
    data = serializer.data
    return Response(data, status=status, headers={"ETag": f'"{data["version"]}"', **(headers or {})})


# A comment and no docstring: the schema would show it as that of every list.
# A list that is short by nature, in the form of a paged list: subclasses add `results`.
class OnePage(Shape):
    next: str | None = described("always null: there is one page", default=None)
    previous: str | None = described(default=None)
