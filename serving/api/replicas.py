"""REST view of a release's replicas: how many each environment is to have, which it has, and saying how many."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import CharField, IntegerField, SerializerMethodField
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH_OR_ANY, PlainText, StrictSerializer, actor_of, read_body, version_or_any
from accounts.api.responses import OnePage, versioned
from accounts.api.shapes import Shape, described
from accounts.core.access import Verb, require
from registry.queries import visible_release
from serving.environments.core.reasons import LONGEST_REASON
from serving.environments.core.replicas import MOST_REPLICAS
from serving.targets.actions.replacing import replace_replica
from serving.targets.actions.replicas import scale_release
from serving.targets.queries import get_environment
from serving.targets.queries.replicas import ReplicaPlan, replica_of, replica_plans
from serving.traffic.core.admission import Source
from serving.traffic.queries.admission import admissions_of


class ReplicaOut(Shape):
    """One server that is to stay, or that is leaving."""

    replica = IntegerField(source="key")
    ordinal: int
    node: str
    answers: bool = described("it answered a real inference and is not known to be broken")
    has_failed: bool
    is_leaving: bool = described("it is drained, or another takes its place")
    is_silent: bool = described("the agent of its node does not report: whether it answers is unknown")
    is_set_aside: bool = described("it is told to be unwell, and gateways send it nothing")


class AdmissionOut(Shape):
    """What gateways let through to one of its servers at once."""

    in_flight: int = described("requests, from all gateways and over both protocols")
    basis: Source = described(
        "proven by the capacity gate, declared by the envelope (limits.max_concurrency), measured by the load gate, "
        "from the throughput of the envelope, or the default",
        source="source",
    )
    report: str = described("what proves a capacity, by its digest", source="proof.report", default="")


class ReplicasOut(Shape):
    """A release in an environment."""

    environment = CharField(source="environment.slug")
    wanted: int = described("what was said, else the least that its envelope declares, else 1")
    declared_min: int | None = described(source="declared.least")
    declared_max: int | None = described(source="declared.most")
    version: int = described("for If-Match; 0: nobody has said how many")
    reason: str = described("what was said with the number")
    changed_by: str
    answering: int = described("replicas that are to stay and are known to answer")
    admission = SerializerMethodField()
    replicas: list[ReplicaOut]

    @extend_schema_field(AdmissionOut)
    def get_admission(self, plan: ReplicaPlan) -> dict[str, Any]:
        return AdmissionOut(admissions_of(plan.release)[plan.environment.pk]).data


class ReplicasPage(OnePage):
    results: list[ReplicasOut]


class ScaleIn(StrictSerializer):
    environment = PlainText()
    replicas = IntegerField(min_value=1, max_value=MOST_REPLICAS)
    reason = CharField(required=False, default="", allow_blank=True, max_length=LONGEST_REASON)


class ReplaceIn(StrictSerializer):
    replica: int = described("of the release's replicas", min_value=1, max_value=2**63 - 1)
    set_aside: bool = described(
        "gateways send it nothing from now on; refused where no other answers", required=False, default=False
    )
    reason = CharField(required=False, default="", allow_blank=True, max_length=LONGEST_REASON)


class ReplicasView(APIView):
    @extend_schema(operation_id="releases_replicas", responses=ReplicasPage)
    def get(self, request: Request, slug: str, name: str) -> Response:
        """The release's replicas in each environment that has some: a handful, so there is one page."""
        release = visible_release(actor_of(request), slug, name)
        return Response(ReplicasPage({"results": replica_plans(release=release)}).data)

    @extend_schema(operation_id="releases_scale", request=ScaleIn, responses=ReplicasOut, parameters=[IF_MATCH_OR_ANY])
    def post(self, request: Request, slug: str, name: str) -> Response:
        """How many replicas the release is to have in an environment from now on. Agents bring them about."""
        actor, data = actor_of(request), read_body(ScaleIn, request)
        release, environment = visible_release(actor, slug, name), get_environment(data.pop("environment"))
        version = version_or_any(request)
        scale_release(actor=actor, release=release, environment=environment, expected_version=version, **data)
        found: list[ReplicaPlan] = replica_plans(environment, release)
        return versioned(ReplicasOut(found[0]))


class ReplaceView(APIView):
    @extend_schema(operation_id="releases_replace_replica", request=ReplaceIn, responses=ReplicasOut)
    def post(self, request: Request, slug: str, name: str) -> Response:
        """Another replica takes the place of this one, which answers until as many others do as are wanted. Asked again nothing happens."""
        actor, data = actor_of(request), read_body(ReplaceIn, request)
        release = visible_release(actor, slug, name)
        require(actor, Verb.SCALE_RELEASE, release.model.team.slug, release.model.slug)
        one = replica_of(release, data.pop("replica"))
        replace_replica(actor=actor, replica=one, **data)
        return versioned(ReplicasOut(replica_plans(one.environment, one.release)[0]))
