"""The JSON shapes of models and releases, in and out."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema_field
from rest_framework.serializers import (
    CharField,
    ChoiceField,
    IntegerField,
    JSONField,
    ListField,
    ListSerializer,
    SerializerMethodField,
    UUIDField,
)

from accounts.api.requests import DocumentField, DocumentSerializer, DocumentText, PlainText, StrictSerializer
from accounts.api.shapes import Shape, described
from accounts.core.addresses import API
from registry.core.lifecycle import FileRole
from registry.core.uploads import UploadState
from registry.hooks.code_runs import code_runs_of
from registry.hooks.outcomes import RolledBack, rolled_back_of
from registry.models import Release, ServedModel, Upload, Waiver
from registry.queries import has_code_waiver, manifest_of, missing_files, unverified_uploads, waivers_missing
from registry.queries.file_headers import hidden_of, imports_of


class ModelOut(Shape):
    """A model: what it promises, how it is judged and rolled out."""

    slug: str
    team = CharField(source="team.slug")
    title: str
    description: str
    contract: Any = described("{inputs: [{name, data_type, dims}], outputs: […]}")
    objectives: Any = described("{errors_max_frac, slow: {threshold_ms, max_frac}, first_token, stalled}")
    gate_policy: Any
    rollout_policy: Any
    traffic_policy: Any = described(
        "{tenants: {header, named, others}, classes: {header, default, named}, idempotent, retry_on_reset}: whose requests "
        "gateways let through, which have places of their own, and which may be asked twice"
    )
    ownership: Any = described("{on_call, runbook_url, escalation}: who is called when it breaks")
    last_release = SerializerMethodField(help_text="the name of the newest release, such as r14")
    version: int = described("for If-Match")
    created_at: datetime
    links = SerializerMethodField()

    def get_last_release(self, model: ServedModel) -> str | None:
        return f"r{model.last_number}" if model.last_number else None

    def get_links(self, model: ServedModel) -> dict[str, str]:
        here = f"{API}/models/{model.slug}"
        return {"self": here, "releases": f"{here}/releases"}


class ModelChange(DocumentSerializer):
    """Settings to change; those left out stay. The contract stays as it is once a release is sealed."""

    title = DocumentText(required=False)
    description = DocumentText(required=False)
    contract = DocumentField(required=False)
    objectives = DocumentField(required=False)
    gate_policy = DocumentField(required=False)
    rollout_policy = DocumentField(required=False)
    traffic_policy = DocumentField(required=False)
    ownership = DocumentField(required=False)


class ModelIn(StrictSerializer):
    """A new model. Unknown fields are refused."""

    problem_code = "invalid_model"
    slug = PlainText(max_length=60)
    team = PlainText()
    title = DocumentText(default=str)
    description = DocumentText(default=str)
    contract = DocumentField(default=dict)
    objectives = DocumentField(default=dict)
    gate_policy = DocumentField(default=dict)
    rollout_policy = DocumentField(default=dict)
    traffic_policy = DocumentField(default=dict)
    ownership = DocumentField(default=dict)


class FileOut(Shape):
    path: str
    role: FileRole
    sha256: str = described("64 hex digits")
    size_bytes: int


class ReleaseFileOut(FileOut):
    """A file of a draft, by its row."""

    sha256: str = described("64 hex digits", source="blob_id")
    size_bytes: int = described(source="blob.size_bytes")


class FileIn(Shape):
    path = CharField(max_length=300)
    sha256: str
    size_bytes = IntegerField(min_value=0)


@extend_schema_field(FileIn(many=True))
class FilesField(DocumentField):
    """The announced files; the action reads them together with the rest of the draft."""


class DraftIn(DocumentSerializer):
    """release.yaml as JSON, or its text, and the files that will be uploaded."""

    problem_code = "invalid_spec"
    model = DocumentField(help_text="the model's slug")
    runtime = DocumentField(help_text="{image: name@sha256:…, server, backend}")
    serving = DocumentField()
    envelope = DocumentField(required=False)
    provenance = DocumentField(required=False)
    release_yaml = DocumentText(
        required=False,
        help_text="the text of release.yaml, in the place of the members above; those that are sent too win",
    )
    files = FilesField(required=False)
    resume: bool = described(
        "answer a draft of yours of just this content, if there is one, to go on with", default=False
    )


class CodeRunOut(Shape):
    """What a release's code may do on one node that offers its runtime."""

    node: str
    containment = ChoiceField(
        choices=["contained", "not contained", "unknown"],
        help_text="whether the node contains code, as its agent tried it",
    )
    says: str = described("the same as a sentence")
    may_run: bool = described("false: the node cannot shut code in, and its owner did not allow it without")


class WaiverOut(Shape):
    kind: str
    manifest_digest: str
    reason: str
    granted_by: str | None = described(source="granted_by.username")
    granted_at: datetime
    code_runs = SerializerMethodField(help_text="what it allows: what the code may do on each node, as of now")

    @extend_schema_field(CodeRunOut(many=True))
    def get_code_runs(self, waiver: Waiver) -> Any:
        return CodeRunOut(code_runs_of(waiver.release), many=True).data


class WaiverIn(StrictSerializer):
    problem_code = "invalid_waiver"
    reason = PlainText()
    kind = ChoiceField(
        choices=["code", "pickle"],
        default=None,
        allow_null=True,
        help_text="left out: the first that the release still needs",
    )


class RolledBackOut(Shape):
    rollout: int
    environment: str
    at: datetime | None
    why: str


class ReleaseBrief(Shape):
    """A release in a list."""

    id: UUID
    model = CharField(source="model.slug")
    name: str = described("r14, or draft")
    number: int | None
    state = ChoiceField(choices=["draft", "sealed", "retired"])
    digest: str | None = described("sha256:<64 hex> of the manifest")
    is_code_bearing: bool
    author: str | None = described(source="author.username")
    version: int = described("for If-Match")
    created_at: datetime
    sealed_at: datetime | None
    retired_at: datetime | None
    rolled_back = SerializerMethodField(
        help_text="rollouts that took it back after it had traffic, the newest first; a promotion there since clears them"
    )
    links = SerializerMethodField()
    _rolled_back: dict[Any, list[RolledBack]] | None = None

    @extend_schema_field(RolledBackOut(many=True))
    def get_rolled_back(self, release: Release) -> Any:
        if self._rolled_back is None:  # of all that are shown at once
            shown = self.parent.instance if isinstance(self.parent, ListSerializer) else [self.instance]
            self._rolled_back = rolled_back_of([one.pk for one in shown or [] if one is not None and one.number])
        return RolledBackOut(self._rolled_back.get(release.pk, []), many=True).data

    def get_links(self, release: Release) -> dict[str, str]:
        model = f"{API}/models/{release.model.slug}"
        if not release.number:
            draft = f"{API}/releases/{release.pk}"
            return {"self": draft, "files": f"{draft}/files/{{path}}", "seal": f"{draft}/seal", "model": model}
        here = f"{model}/releases/{release.name}"
        return {
            "self": here,
            "files": f"{here}/files/{{path}}",
            "headers": f"{here}/headers",
            "waivers": f"{here}/waivers",
            "signature": f"{here}/signature",
            "attestations": f"{here}/attestations",
            "notes": f"{here}/notes",
            "comments": f"{here}/comments",
            "mlbom": f"{here}/mlbom",
            "gate_runs": f"{here}/gate-runs",
            "model": model,
        }


class ReleaseOut(ReleaseBrief):
    """A sealed release with its manifest, files and waivers. One release at a time."""

    has_code_waiver = SerializerMethodField(help_text="whether every waiver that it needs is given")
    waivers_missing = SerializerMethodField()
    imports = SerializerMethodField(
        help_text="what loading its pickles would import, by path; told by their opcodes, never by running them"
    )
    hidden = SerializerMethodField(
        help_text="characters and encodings in its source that a reviewer does not see, by path"
    )
    manifest = SerializerMethodField()
    files = SerializerMethodField()
    waivers = SerializerMethodField()
    code_runs = SerializerMethodField(
        help_text="what its own code may do on each node that offers its runtime; empty for a release without code"
    )
    _manifest: dict[str, Any] | None = None

    def get_has_code_waiver(self, release: Release) -> bool:
        return has_code_waiver(release)

    @extend_schema_field(ListField(child=ChoiceField(choices=["code", "pickle"])))
    def get_waivers_missing(self, release: Release) -> list[str]:
        return sorted(waivers_missing(release))

    def get_imports(self, release: Release) -> dict[str, list[str]]:
        return {path: list(names) for path, names in imports_of(release).items()}

    def get_hidden(self, release: Release) -> dict[str, list[str]]:
        return {path: list(found) for path, found in hidden_of(release).items()}

    @extend_schema_field(JSONField())
    def get_manifest(self, release: Release) -> dict[str, Any]:
        if self._manifest is None:  # it may have megabytes, and is needed twice
            self._manifest = manifest_of(release)
        return self._manifest

    @extend_schema_field(FileOut(many=True))
    def get_files(self, release: Release) -> Any:
        return FileOut(self.get_manifest(release)["files"], many=True).data

    @extend_schema_field(WaiverOut(many=True))
    def get_waivers(self, release: Release) -> Any:
        return WaiverOut(release.waivers.select_related("granted_by").order_by("granted_at"), many=True).data

    @extend_schema_field(CodeRunOut(many=True))
    def get_code_runs(self, release: Release) -> Any:
        return CodeRunOut(code_runs_of(release), many=True).data


class QuarantinedFile(Shape):
    path: str
    problem: str = described("why its bytes were refused, and what to do")


class DraftOut(ReleaseBrief):
    """A draft, and what it still misses. One draft at a time."""

    missing = SerializerMethodField(help_text="announced paths that were not uploaded yet")
    verifying = SerializerMethodField(
        help_text="paths whose parts are all here and whose bytes are being read; still missing"
    )
    quarantined = SerializerMethodField()
    uploads = SerializerMethodField(help_text="that are being verified")
    _unverified: list[Upload] | None = None

    def get_missing(self, release: Release) -> list[str]:
        return missing_files(release)

    def get_verifying(self, release: Release) -> list[str]:
        return [upload.path for upload in self._uploads(release, UploadState.VERIFYING)]

    @extend_schema_field(QuarantinedFile(many=True))
    def get_quarantined(self, release: Release) -> Any:
        return QuarantinedFile(self._uploads(release, UploadState.QUARANTINED), many=True).data

    @extend_schema_field(ListField(child=UUIDField()))
    def get_uploads(self, release: Release) -> list[str]:
        return [str(upload.pk) for upload in self._uploads(release, UploadState.VERIFYING)]

    def _uploads(self, release: Release, state: UploadState) -> list[Upload]:
        if self._unverified is None:
            self._unverified = list(unverified_uploads(release))
        return [upload for upload in self._unverified if upload.state == state]
