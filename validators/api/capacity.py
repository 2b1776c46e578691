"""REST views of a release's envelope and capacity: declared beside measured, replicas for a forecast, and the measured envelope."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import ChoiceField, DictField, FloatField, ListField
from rest_framework.views import APIView

from accounts.api.requests import StrictSerializer, actor_of, read_body
from accounts.api.shapes import Shape, described
from registry.api.gpu_memory import MemoryEstimateOut
from registry.queries import visible_release
from validators.core.capacity_plan import Forecast, plan_for
from validators.queries import latest_report
from validators.queries.capacity import measured_envelope, plan_basis_of
from validators.queries.envelope import envelope_of

_MOST_PER_S = 1e9


class ForecastIn(StrictSerializer):
    """What is expected of the release's users. Shares are of 1: a growth of 0.2 is a fifth more."""

    peak_per_s: float = described("requests a second", min_value=0.001, max_value=_MOST_PER_S)
    growth_frac = FloatField(default=0.0, min_value=-0.99, max_value=1000)
    burst_factor = FloatField(default=1.0, min_value=1, max_value=1000)
    retry_frac: float = described("sent again, per request", default=0.0, min_value=0, max_value=10)
    ramp_frac_per_min: float = described(
        "growth of the load in a minute, while a replica starts", default=0.0, min_value=0, max_value=100
    )
    spare: int = described("replicas that may be lost", default=1, min_value=0, max_value=10_000)
    surge_frac: float = described(
        "replicas that come up beside the others in a rollout", default=1.0, min_value=0, max_value=10
    )
    mean_per_s: float | None = described(
        "over all hours; for the cost", default=None, min_value=0.001, max_value=_MOST_PER_S
    )
    prices_per_hour = DictField(
        child=FloatField(min_value=0, max_value=1e6), default=dict, help_text="of one replica, by hardware"
    )


class PlanBasisOut(Shape):
    """What one replica holds, and from where that is known."""

    per_s: float = described("requests a second of one replica, proven")
    gate: str = described("capacity: the limit that was found; load: it holds this, and may hold more")
    hardware: str = described("that it was measured on; empty where the node did not tell")
    slo_ms: float
    slo_quantile: float
    confidence: float
    report: str = described("the report's digest")
    cold_start_s: float | None = described("from nothing to ready, as measured")
    measured_at: datetime


class CapacityPlanOut(Shape):
    """Replicas for a forecast. Null is unknown, and `unknown` says why."""

    load_per_s: float | None = described("at the peak, with all that adds to it")
    serving: int | None = described("replicas that the load takes")
    replicas: int | None = described("with those that may be lost")
    in_rollout: int | None = described("while another release comes up beside them")
    used_frac: float | None = described("of all replicas, at the peak")
    used_frac_after_loss: float | None
    cost_per_hour: float | None = described("in the prices' currency")
    cost_per_100k: float | None = described("requests, at the mean rate")
    unknown: list[str]
    basis: PlanBasisOut | None


class MeasuredEnvelopeOut(Shape):
    """Parts of an envelope for the next release.yaml; what was not measured is left out."""

    host = DictField(required=False, help_text="what was declared, with what the server held at most")
    performance = ListField(
        required=False, child=DictField(), help_text="declared for other hardware, and what was measured"
    )


class EnvelopeRowOut(Shape):
    """One value of the envelope: declared, measured, where, and the verdict."""

    field: str = described("its path in the envelope, such as performance[0].latency_ms.p99")
    words: str
    unit: str = described("of both numbers; empty for a throughput that is not declared")
    declared: float | None = described("null if the envelope does not declare it")
    declared_for: str = described("the load and hardware of the declaration")
    measured: float | None = described("null if no gate measured it")
    gate: str = described("that measured it, or would")
    verdict = ChoiceField(choices=["passed", "failed", "unknown"])
    under: str = described("the load of the measurement")
    sentence: str


class EnvelopeOut(Shape):
    """The envelope as the newest report judged it."""

    report: str | None = described("its digest; null if no gate run has ended")
    rows: list[EnvelopeRowOut]
    notes: list[str]
    estimate: MemoryEstimateOut | None = described("of GPU memory before any run; null: it uses no GPU")


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
