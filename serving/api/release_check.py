"""REST view of the dry check of a release: every mistake at once, and what there is to choose from. Nothing is stored."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import ChoiceField, IntegerField, ListField
from rest_framework.views import APIView

from accounts.api.requests import DocumentField, PlainText, StrictSerializer, actor_of, read_body
from accounts.api.shapes import Shape, described
from registry.core.engine_flavour import FLAVOURS
from registry.core.folder_rules import MOST_MEMBERS
from registry.core.formats.heads import MOST_PIECES
from registry.queries import visible_model
from registry.queries.release_check import check_release
from serving.targets.queries.node_fit import DraftFits, draft_fits
from serving.targets.queries.runtimes import offered_runtimes


class PieceIn(StrictSerializer):
    """A range of a file."""

    offset = IntegerField(min_value=0)
    base64 = PlainText(help_text="its bytes")


class CheckedFileIn(StrictSerializer):
    path = PlainText()
    size_bytes = IntegerField(min_value=0)
    sha256 = PlainText(required=False, help_text="where it is known already: with all of them the digest is told")
    head = PlainText(required=False, help_text="the file's first bytes in base64")
    pieces = ListField(
        child=PieceIn(),
        help_text="other ranges in which the header lies; with `head` at most 1.5 MiB of all files",
        required=False,
        max_length=MOST_PIECES,
    )


class CheckIn(StrictSerializer):
    """A release that is not sent yet."""

    problem_code = "invalid_check"
    document = DocumentField(help_text="release.yaml, as text or as JSON")
    files = ListField(child=CheckedFileIn(), default=list, max_length=MOST_MEMBERS)


class CheckProblemOut(Shape):
    file: str = described("in the release folder; empty: the folder as a whole")
    line: int | None = described("from 1")
    column: int | None = described("from 1")
    field: str
    message: str
    fix: str


class OfferedRuntimeOut(Shape):
    image: str
    server: str
    backends: list[str]
    nodes: list[str] = described("that offer it")


class CheckOut(Shape):
    """What is wrong with a release that is not there yet, and what can be told of it."""

    is_fine: bool = described("nothing is wrong, as far as headers tell")
    problems: list[CheckProblemOut] = described("the first 100, and one more that counts the rest")
    digest: str | None = described("that the release will have; needs every sha256")
    waivers_needed = ListField(child=ChoiceField(choices=["code", "pickle"]))
    is_offered: bool | None = described("whether a node offers its runtime now")
    runs_nowhere: str = described("why no node can run it now, by the rules of the fit; empty if one may")
    runtimes: list[OfferedRuntimeOut]
    plan_tensorrt: str | None = described(
        "the version that built the engine plan, by its header; null where it is not told"
    )
    plan_flavour = ChoiceField(
        allow_null=True, choices=list(FLAVOURS), help_text="of the engine plan, by its header; null if it was not read"
    )
    warnings: list[str] = described("one for each node with the runtime on which the engine plan cannot load")
    suggested_serving: Any = described("{inputs, outputs}, or null")
    document: Any = described("release.yaml as it was read; null where it holds no fields")
    text: str | None = described("the same as YAML")


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
