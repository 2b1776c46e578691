"""REST view of the dry check of a release: every mistake at once, and what there is to choose from. Nothing is stored."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import DocumentField, PlainText, StrictSerializer, actor_of, read_body
from registry.core.engine_flavour import FLAVOURS
from registry.core.folder_rules import MOST_MEMBERS
from registry.core.formats.heads import MOST_PIECES
from registry.queries import visible_model
from registry.queries.release_check import check_release
from serving.targets.queries.node_fit import DraftFits, draft_fits
from serving.targets.queries.runtimes import offered_runtimes


class PieceIn(StrictSerializer):
    """A range of a file."""

    offset = serializers.IntegerField(min_value=0)
    base64 = PlainText(help_text="its bytes")


class CheckedFileIn(StrictSerializer):
    path = PlainText()
    size_bytes = serializers.IntegerField(min_value=0)
    sha256 = PlainText(required=False, help_text="where it is known already: with all of them the digest is told")
    head = PlainText(required=False, help_text="the file's first bytes in base64")
    pieces = serializers.ListField(
        child=PieceIn(),
        required=False,
        max_length=MOST_PIECES,
        help_text="other ranges in which the header lies; with `head` at most 1.5 MiB of all files",
    )


class CheckIn(StrictSerializer):
    """A release that is not sent yet."""

    problem_code = "invalid_check"
    document = DocumentField(help_text="release.yaml, as text or as JSON")
    files = serializers.ListField(child=CheckedFileIn(), default=list, max_length=MOST_MEMBERS)


class CheckProblemOut(serializers.Serializer[Any]):
    file = serializers.CharField(allow_blank=True, help_text="in the release folder; empty: the folder as a whole")
    line = serializers.IntegerField(allow_null=True, help_text="from 1")
    column = serializers.IntegerField(allow_null=True, help_text="from 1")
    field = serializers.CharField(allow_blank=True)
    message = serializers.CharField()
    fix = serializers.CharField(allow_blank=True)


class OfferedRuntimeOut(serializers.Serializer[Any]):
    image = serializers.CharField()
    server = serializers.CharField()
    backends = serializers.ListField(child=serializers.CharField())
    nodes = serializers.ListField(child=serializers.CharField(), help_text="that offer it")


class CheckOut(serializers.Serializer[Any]):
    """What is wrong with a release that is not there yet, and what can be told of it."""

    is_fine = serializers.BooleanField(help_text="nothing is wrong, as far as headers tell")
    problems = CheckProblemOut(many=True, help_text="the first 100, and one more that counts the rest")
    digest = serializers.CharField(allow_null=True, help_text="that the release will have; needs every sha256")
    waivers_needed = serializers.ListField(child=serializers.ChoiceField(choices=["code", "pickle"]))
    is_offered = serializers.BooleanField(allow_null=True, help_text="whether a node offers its runtime now")
    runs_nowhere = serializers.CharField(
        allow_blank=True, help_text="why no node can run it now, by the rules of the fit; empty if one may"
    )
    runtimes = OfferedRuntimeOut(many=True)
    plan_tensorrt = serializers.CharField(
        allow_null=True, help_text="the version that built the engine plan, by its header; null where it is not told"
    )
    plan_flavour = serializers.ChoiceField(
        allow_null=True, choices=list(FLAVOURS), help_text="of the engine plan, by its header; null if it was not read"
    )
    warnings = serializers.ListField(
        child=serializers.CharField(),
        help_text="one for each node with the runtime on which the engine plan cannot load",
    )
    suggested_serving = serializers.JSONField(help_text="{inputs, outputs}, or null")
    document = serializers.JSONField(help_text="release.yaml as it was read; null where it holds no fields")
    text = serializers.CharField(allow_null=True, help_text="the same as YAML")


def _offers(runtime: dict[str, Any], asked: dict[str, Any]) -> bool:
    """Whether a runtime image on offer runs a release of this `runtime`."""
    return bool(runtime["image"] == asked["image"] and asked["backend"] in runtime["backends"])


class ReleaseCheckView(APIView):
    @extend_schema(operation_id="releases_check", request=CheckIn, responses=CheckOut)
    def post(self, request: Request, slug: str) -> Response:
        """A release.yaml and a list of files, checked as the seal would, each mistake with file, line and column."""
        model = visible_model(actor_of(request), slug)
        said = read_body(CheckIn, request)
        checked, text = check_release(model, said["document"], said["files"])
        runtimes = offered_runtimes()
        document = dict(checked.document) if checked.document is not None else None
        asked = checked.spec.runtime if checked.spec else None
        fits = draft_fits(checked.spec, checked.plan) if checked.spec else DraftFits()
        answer = {
            "is_fine": not checked.problems,
            "problems": [one.as_json() for one in checked.problems],
            "digest": checked.digest,
            "waivers_needed": list(checked.waivers),
            "is_offered": any(_offers(one, asked) for one in runtimes) if asked else None,
            "runs_nowhere": fits.runs_nowhere,
            "runtimes": runtimes,
            "plan_tensorrt": checked.plan.get("tensorrt"),
            "plan_flavour": checked.plan.get("flavour"),
            "warnings": list(fits.warnings),
            "suggested_serving": checked.suggested_serving,
            "document": document,
            "text": text,
        }
        return Response(CheckOut(answer).data)
