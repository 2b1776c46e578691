"""Whose events an actor may read."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from accounts.core.access import Actor, Role, Verb, may
from ledger.models import Event
from ledger.queries import events
from registry.queries import visible_models


def visible_events(actor: Actor) -> QuerySet[Event]:
    """Everything for an administrator; for others what happened to models and webhooks of their teams, and what they did themselves.

    An event is about a model when its facts name it as `model`, or when the model is its subject.
    """
    if actor.is_admin or actor.is_system:
        return events()
    return events().filter(_about_teams_of(actor) | Q(actor=actor.name))


def events_of_team(team: str) -> QuerySet[Event]:
    """What every member of the team may read."""
    member = Actor(name="", roles=((team, Role.MODEL_TEAM),))
    return events().filter(_about_teams_of(member))


def _about_teams_of(actor: Actor) -> Q:
    slugs = list(visible_models(actor).values_list("slug", flat=True))
    teams = [team for team in {team for team, _ in actor.roles} if may(actor, Verb.READ, team)]
    about_model = Q(facts__model__in=slugs) | Q(subject_type="model", subject_id__in=slugs)
    return about_model | Q(subject_type="webhook", facts__team__in=teams)
