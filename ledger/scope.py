"""Whose events an actor may read.

Models live in a room above this one, so that room says which of them are the actor's: `registry` calls `models_from`
when Django is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.db.models import Q, QuerySet

from accounts.core.access import Actor
from ledger.models import Event

_models_of: Callable[[Actor], Iterable[str]] | None = None


def models_from(source: Callable[[Actor], Iterable[str]]) -> None:
    """`source(actor)` gives the names of the models that the actor may read."""
    global _models_of
    _models_of = source


def visible_events(actor: Actor) -> QuerySet[Event]:
    """Everything for an administrator; for others what happened to models they may read, and what they did themselves.

    An event is about a model when its facts name it as `model`, or when the model is its subject.
    """
    if actor.is_admin or actor.is_system:
        return Event.objects.all()
    slugs = list(_models_of(actor)) if _models_of is not None else []
    about = Q(facts__model__in=slugs) | Q(subject_type="model", subject_id__in=slugs)
    return Event.objects.filter(about | Q(actor=actor.name))
