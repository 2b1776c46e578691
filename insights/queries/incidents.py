"""Named reads of incidents, and of what happened around one."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.db.models import Q, QuerySet
from django.utils import timezone

from accounts.core.access import Actor
from insights.models import Incident
from ledger.core.errors import NotFound
from ledger.models import Event
from ledger.queries.events import events
from registry.queries.releases import sight_of, within_sight

#: A timeline begins so long before its incident, since a cause comes before its effect, and has at most so many events.
BEFORE: Final = timedelta(hours=1)
MOST_EVENTS: Final = 500


def incidents_for(actor: Actor) -> QuerySet[Incident]:
    """Incidents of the models that the actor may read, the newest first."""
    rows = Incident.objects.select_related("environment", "model__team", "release")
    return rows.filter(within_sight(*sight_of(actor), of="model__"))


def get_incident(actor: Actor, pk: int) -> Incident:
    """Raises NotFound("no_such_incident")."""
    found = incidents_for(actor).filter(pk=pk).first()
    if found is None:
        raise NotFound(
            "no_such_incident",
            f"There is no incident {pk}. GET /incidents lists those of the models that you may read.",
        )
    return found


def timeline(incident: Incident) -> list[Event]:
    """Events of the model in the environment, or in no certain one, from an hour before the incident to its end; oldest first.

    At most `MOST_EVENTS`, the latest.
    """
    until = incident.closed_at or timezone.now()
    own = Q(subject_type="incident", subject_id=str(incident.pk))
    here = Q(model=incident.model.slug) & (
        Q(facts__environment=incident.environment.slug) | Q(facts__environment__isnull=True)
    )
    rows = (
        events()
        .filter(own | here & Q(at__gte=incident.opened_at - BEFORE, at__lte=until))
        .exclude(~own, subject_type="incident")
    )
    return list(rows.order_by("-seq")[:MOST_EVENTS])[::-1]
