"""Releases by conditions on what they declare and what was measured of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery

from registry.core.release_filter import FIELDS, MOST_CONDITIONS, Condition, Operator, read_condition
from registry.core.schema import Problem
from registry.core.spec import refuse
from registry.hooks.release_fields import meaning_of, registered_fields
from registry.models import Release, ReleaseNote

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
    if (of_text := _OF_TEXT.get(condition.field)) is not None:
        holds = of_text(str(condition.value))
        return ~holds if condition.operator is Operator.UNEQUAL else holds
    if (meaning := meaning_of(condition.field)) is not None:
        return meaning(condition)
    column = _COLUMNS.get(condition.field) or "spec__" + condition.field.replace(".", "__")
    holds = Q(**{f"{column}{LOOKUPS[condition.operator]}": condition.value})
    # a value that is not there is neither equal nor unequal to one
    return ~holds & Q(**{f"{column}__isnull": False}) if condition.operator is Operator.UNEQUAL else holds


def _has_label(label: str) -> Q:
    """`name=value` or a name among the labels that were sealed, or a tag of the note of now."""
    name, is_pair, value = label.partition("=")
    of_provenance = (
        {"spec__provenance__labels__contains": {name: value}}
        if is_pair
        else {"spec__provenance__labels__has_key": label}
    )
    return Q(**of_provenance) | Q(Exists(_notes_of_now().filter(tags__contains=[label])))


def _has_text(text: str) -> Q:
    """Part of the author's name or of a note, the beginning of the digest, or the number as people write it."""
    number = text.removeprefix("r")
    found = Q(author__username__icontains=text) | Q(spec__provenance__notes__icontains=text)
    found |= Q(digest__startswith=f"sha256:{text.removeprefix('sha256:')}")
    found |= Q(Exists(_notes_of_now().filter(text__icontains=text)))
    is_number = number.isascii() and number.isdigit() and len(number) <= 9
    return found | Q(number=int(number)) if is_number else found


def _notes_of_now() -> QuerySet[ReleaseNote]:
    """The note of now of the release of the outer query."""
    newest = ReleaseNote.objects.filter(release=OuterRef("release")).order_by("-version").values("pk")[:1]
    return ReleaseNote.objects.filter(release=OuterRef("pk"), pk=Subquery(newest))


#: Fields that are no single value of the release: who looks for one finds it in several places.
_OF_TEXT: Final[Mapping[str, Callable[[str], Q]]] = {"label": _has_label, "text": _has_text}
