"""What a release's newest report measured, as fields that conditions on releases may name: `metric.golden.accuracy`, `verdict`."""

from __future__ import annotations

from typing import Final

from django.db.models import Exists, OuterRef, Q, Subquery

from registry.core.release_filter import Condition, FieldKind, Operator
from registry.queries.release_filter import LOOKUPS
from validators.core.gate_diff import METRICS
from validators.models import Measurement, Report

#: Field → (gate, the metric's name).
_METRICS: Final = {f"metric.{gate}.{name.replace(' ', '_')}": (gate, name) for gate, name in METRICS}
FIELDS: Final = {"verdict": FieldKind.TEXT, **dict.fromkeys(_METRICS, FieldKind.NUMBER)}


def meaning(condition: Condition) -> Q:
    """The releases whose newest report says so. One without a report, or that does not have the number, is none of them."""
    is_unequal = condition.operator is Operator.UNEQUAL
    if condition.field == "verdict":
        holds = Q(verdict=condition.value)
        reports = Report.objects.filter(~holds if is_unequal else holds, pk=_newest("release"))
        return Q(Exists(reports.filter(release=OuterRef("pk"))))
    gate, name = _METRICS[condition.field]
    holds = Q(**{f"value{LOOKUPS[condition.operator]}": condition.value})
    found = Measurement.objects.filter(
        ~holds if is_unequal else holds, gate=gate, name=name, report=_newest("report__release")
    )
    return Q(Exists(found.filter(report__release=OuterRef("pk"))))


def measured(gate: str, name: str) -> Subquery:
    """What the newest report of the outer query's release measured, to show and to order by; None where it did not."""
    found = Measurement.objects.filter(
        gate=gate, name=name, report__release=OuterRef("pk"), report=_newest("report__release")
    )
    return Subquery(found.values("value")[:1])


def _newest(release: str) -> Subquery:
    """The newest report of the release that the outer query names so."""
    return Subquery(Report.objects.filter(release=OuterRef(release)).order_by("-pk").values("pk")[:1])
