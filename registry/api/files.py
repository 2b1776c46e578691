"""REST views of the bytes of a release: send a draft's file, fetch a release's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, BinaryIO
from uuid import UUID

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse, UnreadablePostError
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.core.addresses import API
from ledger.core.errors import Invalid
from registry import actions, queries
from registry.api.serializers import ReleaseFileOut
from registry.core.schema import Problem
from registry.core.spec import refuse
from registry.storage import chunks_of, store

_PATH = OpenApiParameter(
    "path", str, OpenApiParameter.PATH, description="as in the release folder: artifact/model.onnx"
)


class FileUploadView(APIView):
    """One small file of a draft: the body is its bytes, at most SLUICEGATE_MAX_SIMPLE_UPLOAD_BYTES (64 MiB unless set).

    Larger ones are uploaded in parts, as /uploads says.
    """

    parser_classes: list[Any] = []

    @extend_schema(
        operation_id="releases_upload_file",
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={200: ReleaseFileOut},
        parameters=[
            _PATH,
            OpenApiParameter(
                "X-Content-SHA256",
                str,
                OpenApiParameter.HEADER,
                required=True,
                description="of the body, 64 hex digits",
            ),
        ],
    )
    def put(self, request: Request, release_id: UUID, path: str) -> Response:
        actor = actor_of(request)
        release = queries.visible_release_by_id(actor, release_id)
        sha256 = request.headers.get("X-Content-SHA256", "")
        if not sha256:
            refuse(
                "invalid_file",
                "The upload",
                [Problem("X-Content-SHA256", "the header is missing.", "Send the sha256 of the file, 64 hex digits.")],
            )
        _bound(request)
        try:
            file = actions.add_file(
                actor=actor,
                release=release,
                path=path,
                sha256=sha256,
                stream=request._request,
                size_bytes=_length(request),
            )
        except UnreadablePostError as error:
            raise Invalid(
                "upload_cut_short", "The upload ended before its Content-Length. Send the file again."
            ) from error
        return Response(ReleaseFileOut(file).data)


class FileView(APIView):
    @extend_schema(
        operation_id="releases_read_file",
        parameters=[_PATH],
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, slug: str, name: str, path: str) -> StreamingHttpResponse:
        file = queries.get_file(queries.visible_release(actor_of(request), slug, name), path)
        content = store().open(file.blob_id)
        response = StreamingHttpResponse(_content(request._request, content), content_type="application/octet-stream")
        response["Content-Length"] = str(file.blob.size_bytes)
        response["ETag"] = f'"{file.blob_id}"'
        response["X-Content-SHA256"] = file.blob_id
        response["Content-Disposition"] = "attachment"
        response["X-Content-Type-Options"] = "nosniff"
        return response


def _bound(request: Request) -> None:
    """Raises Invalid for more bytes than one request may carry; behind ASGI the upload middleware has refused them before."""
    most, length = settings.MAX_SIMPLE_UPLOAD_BYTES, _length(request)
    if length is None or length > most:
        refuse(
            "too_large",
            "The upload",
            [
                Problem(
                    "size_bytes",
                    f"a single PUT takes at most {most} bytes, and its Content-Length says so.",
                    f"Upload the file in parts: POST {API}/uploads.",
                )
            ],
        )


def _length(request: Request) -> int | None:
    text = request.headers.get("Content-Length", "")
    return int(text) if text.isdigit() else None


def _content(request: HttpRequest, file: BinaryIO) -> Iterator[bytes] | AsyncIterator[bytes]:
    """The file in pieces, in the way that the server consumes without holding all of it."""
    return _async_chunks(file) if isinstance(request, ASGIRequest) else _chunks(file)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        yield from chunks_of(file)


async def _async_chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    with file:
        while chunk := await asyncio.to_thread(file.read, 1 << 20):
            yield chunk
