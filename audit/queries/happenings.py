"""Events for the live pages: few columns, in order, from a number on."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.db.models.fields.json import KeyTextTransform

from accounts.core.access import Actor, Verb, may
from accounts.queries import visible_teams
from audit.core.audience import Audience
from audit.core.topics import Happening
from ledger.queries import events
from registry.queries import visible_models

_FACTS = ("model", "team", "release", "candidate", "stable", "number")


def happening_rows(after: int, until: int | None = None) -> QuerySet[Any, tuple[Any, ...]]:
    """Rows for `happening_of`: the events after that number (up to and with `until`), the oldest first."""
    rows = events().filter(seq__gt=after) if until is None else events().filter(seq__gt=after, seq__lte=until)
    facts = [KeyTextTransform(name, "facts") for name in _FACTS]
    return rows.order_by("seq").values_list("seq", "verb", "subject_type", "subject_id", "actor", *facts)


def happening_of(row: tuple[Any, ...]) -> Happening:
    seq, verb, subject_type, subject_id, actor, model, team, *names, number = row
    if number:
        names.append(f"r{number}")
    releases = tuple(dict.fromkeys(name for name in names if name and name != "draft"))
    return Happening(seq, verb, subject_type, subject_id, actor, model or "", team or "", releases)


def audience_of(actor: Actor) -> Audience:
    """Events that the actor may read now. Two queries."""
    if actor.is_admin or actor.is_system:
        return Audience(actor.name, sees_all=True)
    teams = (slug for slug in visible_teams(actor).values_list("slug", flat=True) if may(actor, Verb.READ, slug))
    models = visible_models(actor).values_list("slug", flat=True)
    return Audience(actor.name, models=frozenset(models), teams=frozenset(teams))
