"""REST views of uploads in parts: begin, sign, show, complete, abort."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema, extend_schema_field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import IntegerField, ListField, SerializerMethodField, UUIDField
from rest_framework.views import APIView

from accounts.api.requests import PlainText, StrictSerializer, actor_of, read_body
from accounts.api.shapes import Shape, described
from accounts.core.addresses import API
from registry import actions, queries
from registry.api.parts import PartAnswer, receive
from registry.api.serializers import ReleaseFileOut
from registry.core.schema import Problem
from registry.core.spec import refuse
from registry.core.uploads import PartPlan, UploadState, read_part_digests, read_requested_parts
from registry.models import ReleaseFile, Upload
from registry.storage import SignedPart


class UploadIn(StrictSerializer):
    """A file of a draft that is to be uploaded."""

    problem_code = "invalid_file"
    release: UUID = described("the draft's id")
    path = PlainText(max_length=300)
    size_bytes = IntegerField(min_value=0)
    sha256 = PlainText(help_text="of the whole file, 64 hex digits")
    part_sha256 = ListField(
        child=PlainText(),
        default=None,
        allow_null=True,
        help_text="of each part, where the part size is known already",
    )


class SignIn(StrictSerializer):
    problem_code = "invalid_parts"
    numbers = ListField(child=IntegerField(min_value=1), help_text="at most 100")
    sha256 = ListField(child=PlainText(), help_text="of these parts, in the same order")


class SignedPartOut(Shape):
    number: int
    method: str = described("PUT")
    url: str = described("takes just these bytes, until expires_at; whoever has it needs no token")
    headers: dict[str, str] = described("to be sent along, as they are")
    offset: int
    size_bytes: int
    expires_at: datetime


class SignedOut(Shape):
    parts: list[SignedPartOut]


class ReceivedPartOut(Shape):
    number: int
    size_bytes: int
    sha256: str = described("that it was signed for, which the store has checked")


class UploadOut(Shape):
    """An upload. A file of `parts` parts, each of `part_size` bytes but the last. One upload at a time."""

    exists = SerializerMethodField(help_text="false: the bytes are to be sent")
    upload_id = UUIDField(source="pk")
    release = UUIDField(source="release_id")
    path: str
    sha256: str
    size_bytes: int
    state: UploadState
    problem: str
    part_size: int
    parts = SerializerMethodField()
    received = SerializerMethodField(help_text="the parts that arrived; empty once the upload is complete")
    missing = SerializerMethodField(help_text="the parts that are still to be sent")
    expires_at: datetime
    links = SerializerMethodField()
    _arrived: list[tuple[int, str]] | None = None

    def get_exists(self, upload: Upload) -> bool:
        return False

    def get_parts(self, upload: Upload) -> int:
        return _plan(upload).count

    @extend_schema_field(ReceivedPartOut(many=True))
    def get_received(self, upload: Upload) -> Any:
        plan = _plan(upload)
        rows = [
            {"number": n, "size_bytes": plan.part(n).size_bytes, "sha256": sha256}
            for n, sha256 in self._received(upload)
        ]
        return ReceivedPartOut(rows, many=True).data

    def get_missing(self, upload: Upload) -> list[int]:
        if upload.state != UploadState.OPEN:
            return []
        return sorted({part.number for part in _plan(upload).parts()} - {n for n, _ in self._received(upload)})

    def get_links(self, upload: Upload) -> dict[str, str]:
        here = f"{API}/uploads/{upload.pk}"
        return {"self": here, "sign": f"{here}/parts:sign", "complete": f"{here}:complete"}

    def _received(self, upload: Upload) -> list[tuple[int, str]]:
        if self._arrived is None:  # the store is asked
            self._arrived = queries.received_parts(upload)
        return self._arrived


class UploadBegunOut(UploadOut):
    """An upload, and for a file of one part that was not sent yet, that part signed."""

    signed: list[SignedPartOut] = described("empty for a file of several parts: ask for them", default=[])


class ExistsOut(Shape):
    """The draft has the file already, and nothing is to be sent."""

    exists = SerializerMethodField(help_text="true")
    file = ReleaseFileOut(source="*")

    def get_exists(self, file: ReleaseFile) -> bool:
        return True


class UploadsView(APIView):
    @extend_schema(
        operation_id="uploads_begin",
        request=UploadIn,
        responses={
            200: OpenApiResponse(ExistsOut, "the draft has the file: a release that you may read holds these bytes"),
            201: UploadBegunOut,
        },
    )
    def post(self, request: Request) -> Response:
        actor, said = actor_of(request), read_body(UploadIn, request)
        release = queries.visible_release_by_id(actor, said.pop("release"))
        digests = _part_digests(said.pop("part_sha256"), said["size_bytes"])
        made = actions.begin_upload(actor=actor, release=release, part_sha256=digests, **said)
        if isinstance(made, ReleaseFile):
            return Response(ExistsOut(made).data)
        told = UploadBegunOut(made).data
        if told["parts"] == 1 and told["missing"]:  # a small file's one part is the file itself
            parts = actions.sign_parts(actor=actor, upload=made, wanted={1: made.sha256})
            told["signed"] = _signed(request, made, parts)["parts"]
        return Response(told, status=201)


class UploadView(APIView):
    @extend_schema(operation_id="uploads_read", responses=UploadOut)
    def get(self, request: Request, upload_id: UUID) -> Response:
        return Response(UploadOut(queries.visible_upload(actor_of(request), upload_id)).data)

    @extend_schema(operation_id="uploads_abort", responses={204: None})
    def delete(self, request: Request, upload_id: UUID) -> Response:
        actor = actor_of(request)
        actions.abort_upload(actor=actor, upload=queries.visible_upload(actor, upload_id))
        return Response(status=204)


class SignView(APIView):
    @extend_schema(operation_id="uploads_sign_parts", request=SignIn, responses=SignedOut)
    def post(self, request: Request, upload_id: UUID) -> Response:
        actor = actor_of(request)
        upload = queries.visible_upload(actor, upload_id)
        said, problems = read_body(SignIn, request), list[Problem]()
        wanted = read_requested_parts(said["numbers"], said["sha256"], _plan(upload), problems)
        refuse("invalid_parts", "The list of parts", problems)
        signed = actions.sign_parts(actor=actor, upload=upload, wanted=wanted)
        return Response(_signed(request, upload, signed))


class CompleteView(APIView):
    @extend_schema(
        operation_id="uploads_complete",
        request=None,
        responses={200: UploadOut, 202: OpenApiResponse(UploadOut, "a worker is verifying the bytes")},
    )
    def post(self, request: Request, upload_id: UUID) -> Response:
        actor = actor_of(request)
        upload = actions.complete_upload(actor=actor, upload=queries.visible_upload(actor, upload_id))
        return Response(UploadOut(upload).data, status=202 if upload.state == UploadState.VERIFYING else 200)


class PartView(APIView):
    """One part, into a folder store. Its address is its permission, and is checked before the body is read."""

    authentication_classes: list[Any] = []
    permission_classes: list[Any] = []
    parser_classes: list[Any] = []
    refusals: ClassVar = {"PUT": {403}}

    @extend_schema(
        operation_id="uploads_send_part",
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={200: PartAnswer},
        parameters=[
            OpenApiParameter(name, str, required=True, description="as it was signed")
            for name in ("offset", "size", "sha256", "expires", "signature")
        ],
    )
    def put(self, request: Request, upload: str, number: str) -> Response:
        # Reached only where no ASGI server runs `UploadMiddleware` in front, which reads the body as it comes.
        query = {name: request.query_params.get(name, "") for name in request.query_params}
        return Response(PartAnswer(receive(upload, int(number), query, request._request)).data)


def _plan(upload: Upload) -> PartPlan:
    return PartPlan(upload.size_bytes, upload.part_size)


def _signed(request: Request, upload: Upload, parts: Sequence[SignedPart]) -> dict[str, Any]:
    """Each part with its address, whole where it is one of this installation's."""
    plan, until = _plan(upload), timezone.now() + timedelta(seconds=actions.SIGNED_FOR_S)
    rows = [
        {
            "number": part.number,
            "method": "PUT",
            "url": request.build_absolute_uri(part.url) if part.url.startswith("/") else part.url,
            "headers": part.headers,
            "offset": plan.part(part.number).offset,
            "size_bytes": plan.part(part.number).size_bytes,
            "expires_at": until,
        }
        for part in parts
    ]
    return dict(SignedOut({"parts": rows}).data)


def _part_digests(sent: list[str] | None, size_bytes: int) -> list[str] | None:
    """The bare sha256 of each part. Raises Invalid."""
    if sent is None:
        return None
    problems: list[Problem] = []
    digests = read_part_digests(sent, actions.plan_of(size_bytes), problems)
    refuse("invalid_file", "The upload", problems)
    return digests
