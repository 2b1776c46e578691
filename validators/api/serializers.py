"""The JSON shapes of golden sets, gate runs and reports."""

from __future__ import annotations

import json
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts.api.requests import StrictSerializer
from accounts.core.addresses import API
from validators.models import GateRun, Report
from validators.queries import is_authentic
from validators.queries.expiry import expired_of


class GoldenSetOut(serializers.Serializer[Any]):
    """A model's labelled examples. `digest` is what a gate policy names in golden.set."""

    digest = serializers.CharField()
    items = serializers.IntegerField()
    slices = serializers.DictField(child=serializers.IntegerField())
    created_at = serializers.DateTimeField()


class GateResultOut(serializers.Serializer[Any]):
    """One gate. `verdict` is empty until it is judged."""

    gate = serializers.CharField()
    verdict = serializers.CharField(help_text="passed, failed, undecided, errored, skipped, or empty")
    reason = serializers.CharField(
        help_text="One sentence; until it is judged, what the gate does now or for whom it waits."
    )
    evidence = serializers.JSONField()
    measured = serializers.DictField(
        child=serializers.CharField(allow_null=True),
        help_text="where: node, image, machine, gpu, driver, tensorrt, cpu_model, cpu_count, kernel, and the baseline's "
        "digest; null is unknown, and empty where the gate did not measure",
    )
    reused_from = serializers.CharField(
        source="reused_from.digest",
        allow_null=True,
        default=None,
        help_text="digest of the report from which the result was taken over, since it holds still",
    )
    progress_done = serializers.IntegerField()
    progress_total = serializers.IntegerField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)


class GateRunOut(serializers.Serializer[GateRun]):
    """A run of the gates over a release."""

    id = serializers.IntegerField()
    model = serializers.CharField(source="release.model.slug")
    release = serializers.CharField(source="release.name")
    manifest_digest = serializers.CharField(source="release.digest")
    environment = serializers.CharField(source="environment.slug")
    baseline = serializers.CharField(
        source="baseline.name", allow_null=True, help_text="the stable release to compare with, if there is one"
    )
    policy_digest = serializers.CharField()
    state = serializers.CharField(help_text="queued, running, finished or cancelled")
    verdict = serializers.CharField(help_text="set when finished")
    reason = serializers.CharField()
    requested_by = serializers.CharField()
    gates = GateResultOut(many=True, source="results")
    report = serializers.CharField(source="report.digest", allow_null=True, help_text="the report's digest")
    version = serializers.IntegerField(help_text="for If-Match")
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    url = serializers.SerializerMethodField()
    links = serializers.SerializerMethodField()

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


class GateRunLogOut(serializers.Serializer[Any]):
    """The end of the log of the server that the gates ran on, without paths, credentials and control characters."""

    text = serializers.CharField(help_text="empty where there is none")
    at = serializers.DateTimeField(allow_null=True, help_text="when its agent last saw it")


class GateRunIn(StrictSerializer):
    environment = serializers.CharField(
        default=None, max_length=2000, help_text="in which the release is tried; staging by default"
    )
    only_expired = serializers.BooleanField(
        default=False, help_text="take over what the newest report proved and still holds, and run the other gates only"
    )
    unless_passed = serializers.BooleanField(
        default=False, help_text="answer with the gate run whose gates passed, if its whole report still holds"
    )


class CancelIn(StrictSerializer):
    reason = serializers.CharField(default="", allow_blank=True, max_length=2000)


class ExpiredOut(serializers.Serializer[Any]):
    """A line of evidence that does not hold any more."""

    fact = serializers.CharField(
        help_text="image, machine, gpu, driver, tensorrt, cpu_model, cpu_count, kernel, age, policy, golden_set or place"
    )
    gates = serializers.ListField(child=serializers.CharField(), help_text="those to run again")
    message = serializers.CharField()
    measured = serializers.CharField(allow_null=True, help_text="null is unknown")
    serves = serializers.CharField(allow_null=True, help_text="where the release would serve now; null is unknown")


class ReportOut(serializers.Serializer[Report]):
    """A sealed report: `digest` is the sha256 of `body` as canonical JSON, and `signature` an Ed25519 one over the digest."""

    digest = serializers.CharField()
    signature = serializers.CharField()
    key_id = serializers.CharField()
    is_authentic = serializers.SerializerMethodField(help_text="digest and signature were verified just now")
    verdict = serializers.CharField()
    manifest_digest = serializers.CharField()
    policy_digest = serializers.CharField()
    body = serializers.SerializerMethodField()
    expired = serializers.SerializerMethodField(
        help_text="what of it does not hold on the node that a new replica would be given, under today's gate policy"
    )
    created_at = serializers.DateTimeField()

    def get_is_authentic(self, report: Report) -> bool:
        return is_authentic(report)

    @extend_schema_field(ExpiredOut(many=True))
    def get_expired(self, report: Report) -> Any:
        return [line.as_json() for line in expired_of(report)]

    @extend_schema_field(serializers.JSONField())
    def get_body(self, report: Report) -> Any:
        return json.loads(report.body)


class DiffSide(serializers.Serializer[Any]):
    model = serializers.CharField()
    name = serializers.CharField()
    digest = serializers.CharField()
    report = serializers.CharField(allow_null=True, help_text="digest of the newest report, whose metrics are compared")
    verdict = serializers.CharField(allow_null=True)


class DiffChange(serializers.Serializer[Any]):
    part = serializers.CharField(
        help_text="files, headers, contents, runtime, serving, envelope, provenance or tensors"
    )
    field = serializers.CharField(help_text="a file's path, or a member such as inputs[text].dims")
    kind = serializers.ChoiceField(choices=["added", "removed", "changed", "renamed"])
    old = serializers.JSONField(help_text="null where there was none")
    new = serializers.JSONField(help_text="null where there is none any more")


class DiffLayer(serializers.Serializer[Any]):
    """Tensors of one layer, told by the numbers in their names."""

    layer = serializers.CharField()
    same = serializers.IntegerField()
    changed = serializers.IntegerField()
    added = serializers.IntegerField()
    removed = serializers.IntegerField()
    named = serializers.ListField(
        child=serializers.ListField(child=serializers.CharField(allow_blank=True)),
        help_text="[how, tensor, before, after] of the first",
    )


class DiffTensors(serializers.Serializer[Any]):
    format = serializers.CharField()
    same = serializers.IntegerField(help_text="name, data type and shape are; the numbers may not be")
    added = serializers.IntegerField()
    removed = serializers.IntegerField()
    changed = serializers.IntegerField()
    examples = DiffChange(many=True)
    layers = DiffLayer(many=True, help_text="those in which something differs, in the order of their names")
    layers_left_off = serializers.IntegerField()


class DiffCoupled(serializers.Serializer[Any]):
    parts = serializers.ListField(child=serializers.CharField(), help_text="empty unless more than one changed")
    warning = serializers.CharField(allow_blank=True)


class DiffGate(serializers.Serializer[Any]):
    gate = serializers.CharField()
    old = serializers.CharField(allow_null=True, help_text="the verdict; null where the gate did not run")
    new = serializers.CharField(allow_null=True)


class DiffMeasured(serializers.Serializer[Any]):
    value = serializers.FloatField()
    low = serializers.FloatField(allow_null=True, help_text="of the interval; null where none is known")
    high = serializers.FloatField(allow_null=True)
    n = serializers.IntegerField(allow_null=True)


class DiffMetric(serializers.Serializer[Any]):
    gate = serializers.CharField()
    metric = serializers.CharField()
    unit = serializers.CharField()
    old = DiffMeasured(allow_null=True)
    new = DiffMeasured(allow_null=True)
    says = serializers.CharField(help_text="better, worse, no clear difference, or why it cannot be told")


class DiffOut(serializers.Serializer[Any]):
    """What one release changes against another."""

    old = DiffSide()
    new = DiffSide()
    is_same = serializers.BooleanField(help_text="the manifests say the same")
    changes = DiffChange(many=True)
    changes_left_off = serializers.IntegerField()
    tensors = DiffTensors(many=True)
    unread = serializers.DictField(child=serializers.CharField(), help_text="changed files whose header is not known")
    coupled = DiffCoupled()
    tokenizers = serializers.DictField(
        child=serializers.JSONField(), help_text="path to what differs between two tokenizers"
    )
    gates = DiffGate(many=True)
    metrics = DiffMetric(many=True)
    agreement = DiffMeasured(allow_null=True, help_text="equal answers to the same golden set")
