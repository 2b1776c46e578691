"""Releases by conditions on what they declare and what was measured of them."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Q, QuerySet

from registry.core.release_filter import FIELDS, MOST_CONDITIONS, Condition, Operator, read_condition
from registry.core.schema import Problem
from registry.core.spec import refuse
from registry.hooks.release_fields import meaning_of, registered_fields
from registry.models import Release

LOOKUPS = {
    Operator.EQUAL: "",
    Operator.UNEQUAL: "",
    Operator.BELOW: "__lt",
    Operator.AT_MOST: "__lte",
    Operator.ABOVE: "__gt",
    Operator.AT_LEAST: "__gte",
}
#: Where a field that is no member of release.yaml lies.
_COLUMNS = {"author": "author__username", "sealed_at": "sealed_at", "state": "state"}


def filter_releases(releases: QuerySet[Release], texts: Sequence[str]) -> QuerySet[Release]:
    """Those for which every condition holds. One on a value that a release does not state does not hold. Raises Invalid."""
    if len(texts) > MOST_CONDITIONS:
        fix = f"Send {MOST_CONDITIONS} at most."
        refuse("invalid", "The query", [Problem("where", f"{len(texts)} conditions are too many.", fix)])
    read = [read_condition(text, {**FIELDS, **registered_fields()}) for text in texts]
    refuse("invalid", "The query", [one for one in read if isinstance(one, Problem)])
    for condition in read:
        assert isinstance(condition, Condition)
        releases = releases.filter(_meaning(condition))
    return releases


def _meaning(condition: Condition) -> Q:
    if (meaning := meaning_of(condition.field)) is not None:
        return meaning(condition)
    column = _COLUMNS.get(condition.field) or "spec__" + condition.field.replace(".", "__")
    holds = Q(**{f"{column}{LOOKUPS[condition.operator]}": condition.value})
    # a value that is not there is neither equal nor unequal to one
    return ~holds & Q(**{f"{column}__isnull": False}) if condition.operator is Operator.UNEQUAL else holds
