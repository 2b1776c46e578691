"""The REST doors to uploads in parts: begin, sign, look, complete, abort."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api import actor_of
from ledger.core.errors import Invalid
from registry import actions, queries
from registry.api.parts import PartAnswer, receive
from registry.api.serializers import FileOut, body_of, known_members
from registry.core.schema import Problem
from registry.core.spec import refuse
from registry.core.uploads import PartPlan, UploadState, read_part_digests, read_requested_parts
from registry.models import ReleaseFile, Upload

_BASE = "/api/v1"


class UploadIn(serializers.Serializer[Any]):
    """A file of a draft that is to be uploaded."""

    release = serializers.UUIDField(help_text="the draft's id")
    path = serializers.CharField(max_length=300)
    size_bytes = serializers.IntegerField(min_value=0)
    sha256 = serializers.CharField(help_text="of the whole file, 64 hex digits")
    part_sha256 = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="of each part, where the part size is known already"
    )


class SignIn(serializers.Serializer[Any]):
    numbers = serializers.ListField(child=serializers.IntegerField(min_value=1), help_text="at most 100")
    sha256 = serializers.ListField(child=serializers.CharField(), help_text="of these parts, in the same order")


class SignedPartOut(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    method = serializers.CharField(help_text="PUT")
    url = serializers.CharField(help_text="takes just these bytes, until expires_at; whoever has it needs no token")
    headers = serializers.DictField(child=serializers.CharField(), help_text="to be sent along, as they are")
    offset = serializers.IntegerField()
    size_bytes = serializers.IntegerField()
    expires_at = serializers.DateTimeField()


class SignedOut(serializers.Serializer[Any]):
    parts = SignedPartOut(many=True)


class ReceivedPartOut(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    size_bytes = serializers.IntegerField()
    sha256 = serializers.CharField(help_text="that it was signed for, which the store has checked")


class UploadOut(serializers.Serializer[Upload]):
    """An upload. A file of `parts` parts, each of `part_size` bytes but the last."""

    exists = serializers.BooleanField(help_text="true: the draft has the file already, and nothing is to be sent")
    upload_id = serializers.UUIDField()
    release = serializers.UUIDField()
    path = serializers.CharField()
    sha256 = serializers.CharField()
    size_bytes = serializers.IntegerField()
    state = serializers.ChoiceField(choices=[state.value for state in UploadState])
    problem = serializers.CharField(allow_blank=True)
    part_size = serializers.IntegerField()
    parts = serializers.IntegerField()
    held = ReceivedPartOut(many=True, help_text="the parts that arrived; empty once the upload is complete")
    missing = serializers.ListField(child=serializers.IntegerField(), help_text="the parts that are still to be sent")
    signed = SignedPartOut(many=True, required=False, help_text="on creation, for a file of one part")
    expires_at = serializers.DateTimeField()
    links = serializers.DictField(child=serializers.CharField())

    def to_representation(self, upload: Upload) -> dict[str, Any]:
        plan = PartPlan(upload.size_bytes, upload.part_size)
        here = f"{_BASE}/uploads/{upload.pk}"
        is_open = upload.state == UploadState.OPEN
        held = queries.received_parts(upload)
        return {
            "exists": False,
            "upload_id": str(upload.pk),
            "release": str(upload.release_id),
            "path": upload.path,
            "sha256": upload.sha256,
            "size_bytes": upload.size_bytes,
            "state": upload.state,
            "problem": upload.problem,
            "part_size": upload.part_size,
            "parts": plan.count,
            "held": [{"number": n, "size_bytes": plan.part(n).size_bytes, "sha256": sha256} for n, sha256 in held],
            "missing": sorted({part.number for part in plan.parts()} - {n for n, _ in held}) if is_open else [],
            "expires_at": upload.expires_at.isoformat(),
            "links": {"self": here, "sign": f"{here}/parts:sign", "complete": f"{here}:complete"},
        }


class ExistsOut(serializers.Serializer[ReleaseFile]):
    exists = serializers.BooleanField(help_text="true")
    file = FileOut()

    def to_representation(self, file: ReleaseFile) -> dict[str, Any]:
        told = {"path": file.path, "role": file.role, "sha256": file.blob_id, "size_bytes": file.blob.size_bytes}
        return {"exists": True, "file": told}


class UploadsView(APIView):
    @extend_schema(
        operation_id="uploads_begin",
        request=UploadIn,
        responses={
            200: OpenApiResponse(ExistsOut, "the draft has the file: a release that you may read holds these bytes"),
            201: UploadOut,
        },
    )
    def post(self, request: Request) -> Response:
        body = known_members(body_of(request.data), "release", "path", "size_bytes", "sha256", "part_sha256")
        actor = actor_of(request)
        release = queries.visible_release_by_id(actor, _uuid(body.get("release")))
        size = body.get("size_bytes")
        problems = [
            Problem(name, "the field is missing or not text.", f"Write {name}, as text in quotes.")
            for name in ("path", "sha256")
            if not isinstance(body.get(name), str)
        ]
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            problems.append(Problem("size_bytes", "it must be a whole number.", "Write the file's size in bytes."))
        refuse("invalid_file", "The upload", problems)
        made = actions.begin_upload(
            actor=actor,
            release=release,
            path=body["path"],
            sha256=body["sha256"],
            size_bytes=body["size_bytes"],
            part_sha256=_part_digests(body),
        )
        if isinstance(made, ReleaseFile):
            return Response(ExistsOut(made).data)
        told = UploadOut(made).data
        if told["parts"] == 1 and told["missing"]:  # a small file's one part is the file itself
            parts = actions.sign_parts(actor=actor, upload=made, wanted={1: made.sha256})
            told["signed"] = [_signed_part(request, made, part) for part in parts]
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
        body, problems = known_members(body_of(request.data), "numbers", "sha256"), list[Problem]()
        plan = PartPlan(upload.size_bytes, upload.part_size)
        wanted = read_requested_parts(body.get("numbers"), body.get("sha256"), plan, problems)
        refuse("invalid_parts", "The list of parts", problems)
        signed = actions.sign_parts(actor=actor, upload=upload, wanted=wanted)
        return Response({"parts": [_signed_part(request, upload, part) for part in signed]})


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

    @extend_schema(
        operation_id="uploads_send_part",
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={200: PartAnswer},
        parameters=[
            OpenApiParameter(name, str, required=True, description="as it was signed")
            for name in ("offset", "size", "sha256", "expires", "signature")
        ],
    )
    def put(self, request: Request, upload: str, number: int) -> Response:
        # Reached only where no ASGI server runs `registry.api.parts.PartDoor` in front, which reads the body as it comes.
        query = {name: request.query_params.get(name, "") for name in request.query_params}
        return Response(receive(upload, number, query, request._request))


def _signed_part(request: Request, upload: Upload, part: Any) -> dict[str, Any]:
    cut = PartPlan(upload.size_bytes, upload.part_size).part(part.number)
    return {
        "number": part.number,
        "method": "PUT",
        "url": request.build_absolute_uri(part.url) if part.url.startswith("/") else part.url,
        "headers": part.headers,
        "offset": cut.offset,
        "size_bytes": cut.size_bytes,
        "expires_at": (timezone.now() + timedelta(seconds=actions.SIGNED_FOR_S)).isoformat(),
    }


def _part_digests(body: dict[str, Any]) -> list[str] | None:
    if body.get("part_sha256") is None:
        return None
    problems: list[Problem] = []
    plan = actions.plan_of(body["size_bytes"])
    digests = read_part_digests(body["part_sha256"], plan, problems)
    refuse("invalid_file", "The upload", problems)
    return digests


def _uuid(value: Any) -> UUID:
    try:
        return UUID(str(value))
    except ValueError:
        raise Invalid(
            "invalid_file", "release must be the id of a draft. Write the id that creating the draft gave.",
            errors=[Problem("release", "it is not the id of a draft.", "Write the draft's id.").as_json()],
        ) from None  # fmt: skip
