"""Whose events an actor may read."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from accounts.core.access import Actor, Role, Verb
from accounts.queries import visible_teams
from ledger.models import Event
from ledger.queries import events
from registry.queries import visible_models


def visible_events(actor: Actor) -> QuerySet[Event]:
    """All events for an administrator; for others the events of their teams' models and webhooks, and their own.

    A scope narrows it: to its models, without what happened to webhooks or was done to other models.

    An event is about a model when its facts name it as `model`, or when the model is its subject.
    """
    if actor.is_admin or actor.is_system:
        return events()
    own = Q(actor=actor.name) if may_read_own(actor) else Q(pk__in=[])
    return events().filter(_about_teams_of(actor) | own)


def may_read_own(actor: Actor) -> bool:
    """Whether the actor sees their own events on any subject."""
    return actor.is_system or actor.scope.allows(Verb.READ, None)


def events_of_team(team: str) -> QuerySet[Event]:
    """What every member of the team may read."""
    member = Actor(name="", roles=((team, Role.MODEL_TEAM),))
    return events().filter(_about_teams_of(member))


def _about_teams_of(actor: Actor) -> Q:
    slugs = list(visible_models(actor).values_list("slug", flat=True))
    about_model = Q(model__in=slugs)
    if not may_read_own(actor):
        return about_model
    teams = list(visible_teams(actor).values_list("slug", flat=True))
    return about_model | Q(subject_type="webhook", facts__team__in=teams)
