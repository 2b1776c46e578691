"""How many requests of a release one server may have in flight in each environment, and what that rests on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery

from registry.models import Release
from serving.models import Replica, Route
from serving.traffic.core.admission import AdmissionLimit, Proof
from serving.traffic.core.bounds import bounds_of


def with_proven(replicas: QuerySet[Replica]) -> QuerySet[Replica]:
    """Each with what its route has kept as `proven`, for `admissions_of`; None where there is no route."""
    route = Route.objects.filter(model=OuterRef("release__model"), environment=OuterRef("environment"))
    return replicas.annotate(proven=Subquery(route.values("proven")[:1]))


def admissions_of(release: Release, among: Iterable[Any] | None = None) -> defaultdict[int, AdmissionLimit]:
    """As gateways are told it, by environment: by what its route has kept, else as where nothing is proven. One query; none where
    its replicas `with_proven` are there already, `among`."""
    of, key = bounds_of(release.manifest), str(release.pk)
    kept: Iterable[tuple[int, dict[str, Any]]] = (
        Route.objects.filter(model=release.model_id).values_list("environment_id", "proven")
        if among is None
        else [(one.environment_id, one.proven or {}) for one in among]
    )

    def bound(proof: Proof | None) -> AdmissionLimit:
        return of.admission(proof)

    found: defaultdict[int, AdmissionLimit] = defaultdict(lambda: bound(None))
    found.update({where: bound(Proof.from_json(proven.get(key))) for where, proven in kept})
    return found


def looked_for_in(environment_id: int, model_id: int) -> frozenset[str]:
    """The releases, by key, of which the route has kept what was proven of them, or that nothing was."""
    route = Route.objects.filter(environment=environment_id, model=model_id).values_list("proven", flat=True).first()
    return frozenset(route or ())
