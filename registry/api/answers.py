"""What several doors share: the header that names a version, and the answer that carries one."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

IF_MATCH = OpenApiParameter("If-Match", str, OpenApiParameter.HEADER, description="the version that was read")


def versioned(serializer: BaseSerializer[Any], status: int = 200) -> Response:
    """The answer, with the version that `If-Match` wants as its ETag."""
    data = serializer.data
    return Response(data, status=status, headers={"ETag": f'"{data["version"]}"'})
