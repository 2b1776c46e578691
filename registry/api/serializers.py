"""The JSON shapes of models and releases, in and out."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from ledger.core.errors import Invalid
from registry.core.lifecycle import FileRole
from registry.core.schema import Problem
from registry.core.spec import refuse
from registry.core.uploads import UploadState
from registry.models import Release, ServedModel
from registry.queries import has_code_waiver, manifest_of, missing_files, unverified_uploads, waivers_missing
from registry.queries.file_headers import imports_of

_BASE = "/api/v1"


def body_of(data: Any) -> dict[str, Any]:
    """The request's JSON object. Raises Invalid for anything else."""
    if not isinstance(data, dict):
        raise Invalid("not_an_object", "The body must be a JSON object. Send {…}.")
    return data


def known_members(body: dict[str, Any], *names: str) -> dict[str, Any]:
    """The body, once it has no other members. Raises Invalid naming each."""
    refuse(
        "unknown_field",
        "The body",
        [
            Problem(name, "there is no such field.", f"Remove it; the fields here are {', '.join(names)}.")
            for name in body
            if name not in names
        ],
    )
    return body


class ModelOut(serializers.Serializer[ServedModel]):
    """A model: what it promises, how it is judged and rolled out."""

    slug = serializers.CharField()
    team = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    contract = serializers.JSONField(help_text="{inputs: [{name, data_type, dims}], outputs: […]}")
    objectives = serializers.JSONField(help_text="{errors_max_frac, slow: {threshold_ms, max_frac}}")
    gate_policy = serializers.JSONField()
    rollout_policy = serializers.JSONField()
    last_release = serializers.CharField(allow_null=True, help_text="the name of the newest release, such as r14")
    version = serializers.IntegerField(help_text="for If-Match")
    created_at = serializers.DateTimeField()
    links = serializers.DictField(child=serializers.CharField())

    def to_representation(self, model: ServedModel) -> dict[str, Any]:
        here = f"{_BASE}/models/{model.slug}"
        return {
            "slug": model.slug,
            "team": model.team.slug,
            "title": model.title,
            "description": model.description,
            "contract": model.contract,
            "objectives": model.objectives,
            "gate_policy": model.gate_policy,
            "rollout_policy": model.rollout_policy,
            "last_release": f"r{model.last_number}" if model.last_number else None,
            "version": model.version,
            "created_at": model.created_at.isoformat(),
            "links": {"self": here, "releases": f"{here}/releases"},
        }


class ModelIn(serializers.Serializer[ServedModel]):
    """A new model. Unknown fields are refused."""

    slug = serializers.CharField(max_length=60)
    team = serializers.CharField()
    title = serializers.CharField(required=False)
    description = serializers.CharField(required=False)
    contract = serializers.JSONField(required=False)
    objectives = serializers.JSONField(required=False)
    gate_policy = serializers.JSONField(required=False)
    rollout_policy = serializers.JSONField(required=False)


class ModelChange(serializers.Serializer[ServedModel]):
    """Settings to change; those left out stay. The contract stays as it is once a release is sealed."""

    title = serializers.CharField(required=False)
    description = serializers.CharField(required=False)
    contract = serializers.JSONField(required=False)
    objectives = serializers.JSONField(required=False)
    gate_policy = serializers.JSONField(required=False)
    rollout_policy = serializers.JSONField(required=False)


class FileOut(serializers.Serializer[Any]):
    path = serializers.CharField()
    role = serializers.ChoiceField(choices=[role.value for role in FileRole])
    sha256 = serializers.CharField(help_text="64 hex digits")
    size_bytes = serializers.IntegerField()


class FileIn(serializers.Serializer[Any]):
    path = serializers.CharField(max_length=300)
    sha256 = serializers.CharField()
    size_bytes = serializers.IntegerField(min_value=0)


class DraftIn(serializers.Serializer[Any]):
    """release.yaml as JSON, and the files that will be uploaded."""

    model = serializers.CharField()
    runtime = serializers.JSONField(help_text="{image: name@sha256:…, server, backend}")
    serving = serializers.JSONField()
    envelope = serializers.JSONField(required=False)
    provenance = serializers.JSONField(required=False)
    files = FileIn(many=True, required=False)
    resume = serializers.BooleanField(
        required=False, help_text="answer a draft of yours of just this content, if there is one, to go on with"
    )


class WaiverOut(serializers.Serializer[Any]):
    kind = serializers.CharField()
    manifest_digest = serializers.CharField()
    reason = serializers.CharField()
    granted_by = serializers.CharField(allow_null=True)
    granted_at = serializers.DateTimeField()

    def to_representation(self, waiver: Any) -> dict[str, Any]:
        return {
            "kind": waiver.kind,
            "manifest_digest": waiver.manifest_digest,
            "reason": waiver.reason,
            "granted_by": waiver.granted_by.username if waiver.granted_by else None,
            "granted_at": waiver.granted_at.isoformat(),
        }


class WaiverIn(serializers.Serializer[Any]):
    reason = serializers.CharField()
    kind = serializers.ChoiceField(
        choices=["code", "pickle"], required=False, help_text="left out: the first that the release still needs"
    )


class ReleaseBrief(serializers.Serializer[Release]):
    """A release in a list."""

    id = serializers.UUIDField()
    model = serializers.CharField()
    name = serializers.CharField(help_text="r14, or draft")
    number = serializers.IntegerField(allow_null=True)
    state = serializers.ChoiceField(choices=["draft", "sealed", "retired"])
    digest = serializers.CharField(allow_null=True, help_text="sha256:<64 hex> of the manifest")
    is_code_bearing = serializers.BooleanField()
    author = serializers.CharField(allow_null=True)
    version = serializers.IntegerField(help_text="for If-Match")
    created_at = serializers.DateTimeField()
    sealed_at = serializers.DateTimeField(allow_null=True)
    retired_at = serializers.DateTimeField(allow_null=True)
    links = serializers.DictField(child=serializers.CharField())

    def to_representation(self, release: Release) -> dict[str, Any]:
        return {
            "id": str(release.pk),
            "model": release.model.slug,
            "name": release.name,
            "number": release.number,
            "state": release.state,
            "digest": release.digest,
            "is_code_bearing": release.is_code_bearing,
            "author": release.author.username if release.author else None,
            "version": release.version,
            "created_at": release.created_at.isoformat(),
            "sealed_at": release.sealed_at.isoformat() if release.sealed_at else None,
            "retired_at": release.retired_at.isoformat() if release.retired_at else None,
            "links": _links(release),
        }


class ReleaseOut(ReleaseBrief):
    """A sealed release with its manifest, files and waivers."""

    has_code_waiver = serializers.BooleanField(help_text="whether every waiver that it needs is given")
    waivers_missing = serializers.ListField(child=serializers.ChoiceField(choices=["code", "pickle"]))
    imports = serializers.DictField(
        child=serializers.ListField(child=serializers.CharField()),
        help_text="what loading its pickles would import, by path; told by their opcodes, never by running them",
    )
    manifest = serializers.JSONField()
    files = FileOut(many=True)
    waivers = WaiverOut(many=True)

    def to_representation(self, release: Release) -> dict[str, Any]:
        manifest = manifest_of(release)
        waivers = release.waivers.select_related("granted_by").order_by("granted_at")
        return {
            **super().to_representation(release),
            "has_code_waiver": has_code_waiver(release),
            "waivers_missing": sorted(waivers_missing(release)),
            "imports": dict(imports_of(release)),
            "manifest": manifest,
            "files": manifest["files"],
            "waivers": WaiverOut(waivers, many=True).data,
        }


class QuarantinedFile(serializers.Serializer[Any]):
    path = serializers.CharField()
    problem = serializers.CharField(help_text="why its bytes were refused, and what to do")


class DraftOut(ReleaseBrief):
    """A draft, and what it still misses."""

    missing = serializers.ListField(
        child=serializers.CharField(), help_text="announced paths that were not uploaded yet"
    )

    verifying = serializers.ListField(
        child=serializers.CharField(),
        help_text="paths whose parts are all here and whose bytes are being read; still missing",
    )
    quarantined = QuarantinedFile(many=True)
    uploads = serializers.ListField(child=serializers.UUIDField(), help_text="that are being verified")

    def to_representation(self, release: Release) -> dict[str, Any]:
        unverified = unverified_uploads(release)
        return {
            **super().to_representation(release),
            "missing": missing_files(release),
            "verifying": [u.path for u in unverified if u.state == UploadState.VERIFYING],
            "quarantined": [
                {"path": u.path, "problem": u.problem} for u in unverified if u.state == UploadState.QUARANTINED
            ],
            "uploads": [str(u.pk) for u in unverified if u.state == UploadState.VERIFYING],
        }


def _links(release: Release) -> dict[str, str]:
    draft = f"{_BASE}/releases/{release.pk}"
    if not release.number:
        return {
            "self": draft,
            "files": f"{draft}/files/{{path}}",
            "seal": f"{draft}/seal",
            "model": f"{_BASE}/models/{release.model.slug}",
        }
    here = f"{_BASE}/models/{release.model.slug}/releases/{release.name}"
    return {
        "self": here,
        "files": f"{here}/files/{{path}}",
        "headers": f"{here}/headers",
        "waivers": f"{here}/waivers",
        "signature": f"{here}/signature",
        "attestations": f"{here}/attestations",
        "mlbom": f"{here}/mlbom",
        "gate_runs": f"{here}/gate-runs",
        "model": f"{_BASE}/models/{release.model.slug}",
    }
