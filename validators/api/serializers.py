"""The JSON shapes of golden sets, gate runs and reports."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework.serializers import CharField, ChoiceField, JSONField, SerializerMethodField

from accounts.api.requests import StrictSerializer
from accounts.api.shapes import Shape, described
from accounts.core.addresses import API
from validators.models import GateRun, Report
from validators.queries import is_authentic
from validators.queries.expiry import expired_of


class GoldenSetOut(Shape):
    """A model's labelled examples. `digest` is what a gate policy names in golden.set."""

    digest: str
    items: int
    slices: dict[str, int]
    created_at: datetime


class GateResultOut(Shape):
    """One gate. `verdict` is empty until it is judged."""

    gate: str
    verdict: str = described("passed, failed, undecided, errored, skipped, or empty")
    reason: str = described("One sentence; until it is judged, what the gate does now or for whom it waits.")
    evidence: Any
    measured: dict[str, str | None] = described(
        "where: node, image, machine, gpu, driver, tensorrt, cpu_model, cpu_count, kernel, and the baseline's "
        "digest; null is unknown, and empty where the gate did not measure"
    )
    reused_from: str | None = described(
        "digest of the report from which the result was taken over, since it holds still",
        source="reused_from.digest",
        default=None,
    )
    progress_done: int
    progress_total: int
    started_at: datetime | None
    ended_at: datetime | None


class GateRunOut(Shape):
    """A run of the gates over a release."""

    id: int
    model = CharField(source="release.model.slug")
    release = CharField(source="release.name")
    manifest_digest = CharField(source="release.digest")
    environment = CharField(source="environment.slug")
    baseline: str | None = described("the stable release to compare with, if there is one", source="baseline.name")
    policy_digest: str
    state: str = described("queued, running, finished or cancelled")
    verdict: str = described("set when finished")
    reason: str
    requested_by: str
    gates = GateResultOut(many=True, source="results")
    report: str | None = described("the report's digest", source="report.digest")
    version: int = described("for If-Match")
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    url = SerializerMethodField()
    links = SerializerMethodField()

    def get_url(self, gate_run: GateRun) -> str:
        return f"{API}/gate-runs/{gate_run.pk}"

    def get_links(self, gate_run: GateRun) -> dict[str, str]:
        release = gate_run.release
        links = {
            "self": self.get_url(gate_run),
            "release": f"{API}/models/{release.model.slug}/releases/{release.name}",
        }
        if report := getattr(gate_run, "report", None):
            links["report"] = f"{API}/reports/{report.digest}"
        return links


class GateRunLogOut(Shape):
    """The end of the log of the server that the gates ran on, without paths, credentials and control characters."""

    text: str = described("empty where there is none")
    at: datetime | None = described("when its agent last saw it")


class GateRunIn(StrictSerializer):
    environment: str = described("in which the release is tried; staging by default", default=None, max_length=2000)
    only_expired: bool = described(
        "take over what the newest report proved and still holds, and run the other gates only", default=False
    )
    unless_passed: bool = described(
        "answer with the gate run whose gates passed, if its whole report still holds", default=False
    )


class CancelIn(StrictSerializer):
    reason = CharField(default="", allow_blank=True, max_length=2000)


class ExpiredOut(Shape):
    """A line of evidence that does not hold any more."""

    fact: str = described(
        "image, machine, gpu, driver, tensorrt, cpu_model, cpu_count, kernel, age, policy, golden_set or place"
    )
    gates: list[str] = described("those to run again")
    message: str
    measured: str | None = described("null is unknown")
    serves: str | None = described("where the release would serve now; null is unknown")


class ReportOut(Shape):
    """A sealed report: `digest` is the sha256 of `body` as canonical JSON, and `signature` an Ed25519 one over the digest."""

    digest: str
    signature: str
    key_id: str
    is_authentic = SerializerMethodField(help_text="digest and signature were verified just now")
    verdict: str
    manifest_digest: str
    policy_digest: str
    body = SerializerMethodField()
    expired = SerializerMethodField(
        help_text="what of it does not hold on the node that a new replica would be given, under today's gate policy"
    )
    created_at: datetime

    def get_is_authentic(self, report: Report) -> bool:
        return is_authentic(report)

    @extend_schema_field(ExpiredOut(many=True))
    def get_expired(self, report: Report) -> Any:
        return [line.as_json() for line in expired_of(report)]

    @extend_schema_field(JSONField())
    def get_body(self, report: Report) -> Any:
        return json.loads(report.body)


class DiffSide(Shape):
    model: str
    name: str
    digest: str
    report: str | None = described("digest of the newest report, whose metrics are compared")
    verdict: str | None


class DiffChange(Shape):
    part: str = described("files, headers, contents, runtime, serving, envelope, provenance or tensors")
    field: str = described("a file's path, or a member such as inputs[text].dims")
    kind = ChoiceField(choices=["added", "removed", "changed", "renamed"])
    old: Any = described("null where there was none")
    new: Any = described("null where there is none any more")


class DiffTensors(Shape):
    format: str
    same: int = described("name, data type and shape are; the numbers may not be")
    added: int
    removed: int
    changed: int
    examples: list[DiffChange]


class DiffCoupled(Shape):
    parts: list[str] = described("empty unless more than one changed")
    warning: str


class DiffGate(Shape):
    gate: str
    old: str | None = described("the verdict; null where the gate did not run")
    new: str | None


class DiffMeasured(Shape):
    value: float
    low: float | None = described("of the interval; null where none is known")
    high: float | None
    n: int | None


class DiffMetric(Shape):
    gate: str
    metric: str
    unit: str
    old: DiffMeasured | None
    new: DiffMeasured | None
    says: str = described("better, worse, no clear difference, or why it cannot be told")


class DiffOut(Shape):
    """What one release changes against another."""

    old: DiffSide
    new: DiffSide
    is_same: bool = described("the manifests say the same")
    changes: list[DiffChange]
    changes_left_off: int
    tensors: list[DiffTensors]
    unread: dict[str, str] = described("changed files whose header is not known")
    coupled: DiffCoupled
    tokenizers: dict[str, Any] = described("path to what differs between two tokenizers")
    gates: list[DiffGate]
    metrics: list[DiffMetric]
    agreement: DiffMeasured | None = described("equal answers to the same golden set")
