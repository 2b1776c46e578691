"""The REST doors to models, releases and their files: parse, call, shape."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, BinaryIO
from uuid import UUID

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse, UnreadablePostError
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.views import APIView

from accounts.api import actor_of, expected_version
from accounts.core.errors import Invalid
from registry import actions, queries
from registry.core.fields import Problem
from registry.core.spec import refuse
from registry.models import ReleaseFile
from registry.serializers import (
    DraftIn,
    DraftOut,
    FileOut,
    ModelChange,
    ModelIn,
    ModelOut,
    ReleaseBrief,
    ReleaseOut,
    WaiverIn,
    WaiverOut,
    body_of,
    known_members,
)
from registry.storage import chunks_of, store

_IF_MATCH = OpenApiParameter("If-Match", str, OpenApiParameter.HEADER, description="the version that was read")
_PATH = OpenApiParameter(
    "path", str, OpenApiParameter.PATH, description="as in the release folder: artifact/model.onnx"
)


@extend_schema_view(get=extend_schema(operation_id="models_list", responses=ModelOut(many=True)))
class ModelsView(generics.ListAPIView[Any]):
    serializer_class = ModelOut
    pagination_ordering = "slug"

    def get_queryset(self) -> Any:
        return queries.visible_models(actor_of(self.request))

    @extend_schema(
        operation_id="models_create",
        request=ModelIn,
        responses={201: ModelOut, 200: OpenApiResponse(ModelOut, "it was there already")},
    )
    def post(self, request: Request) -> Response:
        body = known_members(body_of(request.data), *ModelIn().fields)
        refuse(
            "invalid_model",
            "The model",
            [
                Problem(name, "the field is missing or not text.", f"Write {name}, as text in quotes.")
                for name in ("slug", "team")
                if not isinstance(body.get(name), str)
            ],
        )
        settings = {name: body.get(name, {}) for name in ("contract", "objectives", "gate_policy", "rollout_policy")}
        actor = actor_of(request)
        was_there = queries.has_visible_model(actor, body["slug"])
        model = actions.create_model(
            actor=actor,
            slug=body["slug"],
            team=body["team"],
            title=body.get("title", ""),
            description=body.get("description", ""),
            **settings,
        )
        return Response(ModelOut(model).data, status=200 if was_there else 201)


class ModelView(APIView):
    @extend_schema(operation_id="models_read", responses=ModelOut)
    def get(self, request: Request, slug: str) -> Response:
        return _versioned(ModelOut(queries.visible_model(actor_of(request), slug)))

    @extend_schema(operation_id="models_change", request=ModelChange, responses=ModelOut, parameters=[_IF_MATCH])
    def patch(self, request: Request, slug: str) -> Response:
        actor = actor_of(request)
        model = queries.visible_model(actor, slug)
        changed = actions.change_model(
            actor=actor, model=model, expected_version=expected_version(request), changes=body_of(request.data)
        )
        return _versioned(ModelOut(changed))


@extend_schema_view(get=extend_schema(operation_id="releases_list", responses=ReleaseBrief(many=True)))
class ReleasesView(generics.ListAPIView[Any]):
    serializer_class = ReleaseBrief
    pagination_ordering = "-number"

    def get_queryset(self) -> Any:
        return queries.releases_of(queries.visible_model(actor_of(self.request), self.kwargs["slug"]))

    @extend_schema(operation_id="releases_draft", request=DraftIn, responses={201: DraftOut})
    def post(self, request: Request, slug: str) -> Response:
        actor = actor_of(request)
        model = queries.visible_model(actor, slug)
        body = dict(body_of(request.data))
        files = body.pop("files", None)
        draft = actions.create_draft(actor=actor, model=model, spec=body, files=files)
        return _versioned(DraftOut(draft), status=201)


class ReleaseView(APIView):
    @extend_schema(operation_id="releases_read", responses=ReleaseOut)
    def get(self, request: Request, slug: str, name: str) -> Response:
        return _versioned(ReleaseOut(queries.visible_release(actor_of(request), slug, name)))


class DraftView(APIView):
    @extend_schema(operation_id="releases_read_draft", responses=DraftOut)
    def get(self, request: Request, release_id: UUID) -> Response:
        return _versioned(DraftOut(queries.visible_release_by_id(actor_of(request), release_id)))

    @extend_schema(operation_id="releases_discard", responses={204: None})
    def delete(self, request: Request, release_id: UUID) -> Response:
        actor = actor_of(request)
        actions.discard_draft(actor=actor, release=queries.visible_release_by_id(actor, release_id))
        return Response(status=204)


class UploadView(APIView):
    """One file of a draft. The body is the file's bytes, read as they arrive."""

    parser_classes: list[Any] = []

    @extend_schema(
        operation_id="releases_upload_file",
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={200: FileOut},
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
        return Response(FileOut(_file(file)).data)


class SealView(APIView):
    @extend_schema(operation_id="releases_seal", request=None, responses=ReleaseOut, parameters=[_IF_MATCH])
    def post(self, request: Request, release_id: UUID) -> Response:
        actor = actor_of(request)
        release = queries.visible_release_by_id(actor, release_id)
        version = expected_version(request) if "If-Match" in request.headers else None
        return _versioned(ReleaseOut(actions.seal(actor=actor, release=release, expected_version=version)))


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


class WaiversView(APIView):
    @extend_schema(operation_id="releases_waive", request=WaiverIn, responses={201: WaiverOut})
    def post(self, request: Request, slug: str, name: str) -> Response:
        actor = actor_of(request)
        release = queries.visible_release(actor, slug, name)
        body = known_members(body_of(request.data), "reason")
        waiver = actions.grant_waiver(actor=actor, release=release, reason=body.get("reason", ""))
        return Response(WaiverOut(waiver).data, status=201)


def _versioned(serializer: BaseSerializer[Any], status: int = 200) -> Response:
    """The answer, with the version that `If-Match` wants as its ETag."""
    data = serializer.data
    return Response(data, status=status, headers={"ETag": f'"{data["version"]}"'})


def _file(file: ReleaseFile) -> dict[str, Any]:
    return {"path": file.path, "role": file.role, "sha256": file.blob_id, "size_bytes": file.blob.size_bytes}


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
