"""Whose events an actor may read.

Models live in a room above this one, so that room says which of them are the actor's: `registry` calls `models_from`
when Django is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.db.models import Q, QuerySet

from accounts.core.access import Actor, Role, Verb, may
from ledger.models import Event

_models_of: Callable[[Actor], Iterable[str]] | None = None


def models_from(source: Callable[[Actor], Iterable[str]]) -> None:
    """`source(actor)` gives the names of the models that the actor may read."""
    global _models_of
    _models_of = source


def visible_events(actor: Actor) -> QuerySet[Event]:
    """Everything for an administrator; for others what happened to models and webhooks of their teams, and what they did themselves.

    An event is about a model when its facts name it as `model`, or when the model is its subject.
    """
    if actor.is_admin or actor.is_system:
        return Event.objects.all()
    return Event.objects.filter(_about_teams_of(actor) | Q(actor=actor.name))


def events_of_team(team: str) -> QuerySet[Event]:
    """What every member of the team may read."""
    member = Actor(name="", roles=((team, Role.MODEL_TEAM),))
    return Event.objects.filter(_about_teams_of(member))


def _about_teams_of(actor: Actor) -> Q:
    slugs = list(_models_of(actor)) if _models_of is not None else []
    teams = [team for team in {team for team, _ in actor.roles} if may(actor, Verb.READ, team)]
    about_model = Q(facts__model__in=slugs) | Q(subject_type="model", subject_id__in=slugs)
    return about_model | Q(subject_type="webhook", facts__team__in=teams)
