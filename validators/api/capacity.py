"""REST views of a release's envelope and capacity: declared beside measured, replicas for a forecast, and the measured envelope."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import StrictSerializer, actor_of, read_body
from registry.api.gpu_memory import MemoryEstimateOut
from registry.queries import visible_release
from validators.core.capacity_plan import Forecast, plan_for
from validators.queries import latest_report
from validators.queries.capacity import measured_envelope, plan_basis_of
from validators.queries.envelope import envelope_of

_MOST_PER_S = 1e9


class ForecastIn(StrictSerializer):
    """What is expected of the release's users. Shares are of 1: a growth of 0.2 is a fifth more."""

    peak_per_s = serializers.FloatField(min_value=0.001, max_value=_MOST_PER_S, help_text="requests a second")
    growth_frac = serializers.FloatField(default=0.0, min_value=-0.99, max_value=1000)
    burst_factor = serializers.FloatField(default=1.0, min_value=1, max_value=1000)
    retry_frac = serializers.FloatField(default=0.0, min_value=0, max_value=10, help_text="sent again, per request")
    ramp_frac_per_min = serializers.FloatField(
        default=0.0, min_value=0, max_value=100, help_text="growth of the load in a minute, while a replica starts"
    )
    spare = serializers.IntegerField(default=1, min_value=0, max_value=10_000, help_text="replicas that may be lost")
    surge_frac = serializers.FloatField(
        default=1.0, min_value=0, max_value=10, help_text="replicas that come up beside the others in a rollout"
    )
    mean_per_s = serializers.FloatField(
        default=None, allow_null=True, min_value=0.001, max_value=_MOST_PER_S, help_text="over all hours; for the cost"
    )
    prices_per_hour = serializers.DictField(
        child=serializers.FloatField(min_value=0, max_value=1e6), default=dict, help_text="of one replica, by hardware"
    )


class PlanBasisOut(serializers.Serializer[Any]):
    """What one replica holds, and from where that is known."""

    per_s = serializers.FloatField(help_text="requests a second of one replica, proven")
    gate = serializers.CharField(help_text="capacity: the limit that was found; load: it holds this, and may hold more")
    hardware = serializers.CharField(help_text="that it was measured on; empty where the node did not tell")
    slo_ms = serializers.FloatField()
    slo_quantile = serializers.FloatField()
    confidence = serializers.FloatField()
    report = serializers.CharField(help_text="the report's digest")
    cold_start_s = serializers.FloatField(allow_null=True, help_text="from nothing to ready, as measured")
    measured_at = serializers.DateTimeField()


class CapacityPlanOut(serializers.Serializer[Any]):
    """Replicas for a forecast. Null is unknown, and `unknown` says why."""

    load_per_s = serializers.FloatField(allow_null=True, help_text="at the peak, with all that adds to it")
    serving = serializers.IntegerField(allow_null=True, help_text="replicas that the load takes")
    replicas = serializers.IntegerField(allow_null=True, help_text="with those that may be lost")
    in_rollout = serializers.IntegerField(allow_null=True, help_text="while another release comes up beside them")
    used_frac = serializers.FloatField(allow_null=True, help_text="of all replicas, at the peak")
    used_frac_after_loss = serializers.FloatField(allow_null=True)
    cost_per_hour = serializers.FloatField(allow_null=True, help_text="in the prices' currency")
    cost_per_100k = serializers.FloatField(allow_null=True, help_text="requests, at the mean rate")
    unknown = serializers.ListField(child=serializers.CharField())
    basis = PlanBasisOut(allow_null=True)


class MeasuredEnvelopeOut(serializers.Serializer[Any]):
    """Parts of an envelope for the next release.yaml; what was not measured is left out."""

    host = serializers.DictField(required=False, help_text="what was declared, with what the server held at most")
    performance = serializers.ListField(
        required=False, child=serializers.DictField(), help_text="declared for other hardware, and what was measured"
    )


class EnvelopeRowOut(serializers.Serializer[Any]):
    """One value of the envelope: declared, measured, where, and the verdict."""

    field = serializers.CharField(help_text="its path in the envelope, such as performance[0].latency_ms.p99")
    words = serializers.CharField()
    unit = serializers.CharField(help_text="of both numbers; empty for a throughput that is not declared")
    declared = serializers.FloatField(allow_null=True, help_text="null if the envelope does not declare it")
    declared_for = serializers.CharField(allow_blank=True, help_text="the load and hardware of the declaration")
    measured = serializers.FloatField(allow_null=True, help_text="null if no gate measured it")
    gate = serializers.CharField(help_text="that measured it, or would")
    verdict = serializers.ChoiceField(choices=["passed", "failed", "unknown"])
    under = serializers.CharField(allow_blank=True, help_text="the load of the measurement")
    sentence = serializers.CharField()


class EnvelopeOut(serializers.Serializer[Any]):
    """The envelope as the newest report judged it."""

    report = serializers.CharField(allow_null=True, help_text="its digest; null if no gate run has ended")
    rows = EnvelopeRowOut(many=True)
    notes = serializers.ListField(child=serializers.CharField())
    estimate = MemoryEstimateOut(allow_null=True, help_text="of GPU memory before any run; null: it uses no GPU")


class EnvelopeView(APIView):
    @extend_schema(operation_id="releases_envelope", responses=EnvelopeOut)
    def get(self, request: Request, slug: str, name: str) -> Response:
        """Each value of the release's envelope: declared, measured, and whether the one holds the other."""
        release = visible_release(actor_of(request), slug, name)
        return Response(EnvelopeOut(envelope_of(release, latest_report(release))).data)


class CapacityPlanView(APIView):
    @extend_schema(operation_id="releases_capacity_plan", request=ForecastIn, responses=CapacityPlanOut)
    def post(self, request: Request, slug: str, name: str) -> Response:
        """How many replicas of the release a forecast needs, from what its reports prove of one."""
        release = visible_release(actor_of(request), slug, name)
        asked = dict(read_body(ForecastIn, request))
        prices = asked.pop("prices_per_hour")
        found = plan_basis_of(release)
        plan = plan_for(Forecast(**asked), found.basis if found else None, prices)
        basis = {**asdict(found.basis), "measured_at": found.measured_at} if found else None
        return Response(CapacityPlanOut({**asdict(plan), "basis": basis}).data)


class MeasuredEnvelopeView(APIView):
    @extend_schema(operation_id="releases_measured_envelope", responses=MeasuredEnvelopeOut)
    def get(self, request: Request, slug: str, name: str) -> Response:
        """The release's envelope as far as it was measured: its capacity, with the report as evidence, and what its server held."""
        release = visible_release(actor_of(request), slug, name)
        return Response(MeasuredEnvelopeOut(measured_envelope(release)).data)
