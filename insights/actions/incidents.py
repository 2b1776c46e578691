"""Incidents: opened by an alarm that pages or by a person, told about, and closed by a person with a result."""

from __future__ import annotations

import traceback
from typing import Any

import structlog
from django.db import IntegrityError, transaction
from django.db.models import Q

from accounts.core.access import Actor, Verb, require, require_version
from insights.core.incident import MOVES, IncidentState
from insights.models import Incident
from insights.queries.evidence import evidence
from ledger.actions import append_event
from ledger.actions.transitions import transition
from ledger.core.errors import StateChanged
from ledger.queries import clock
from registry.models import Release, ServedModel
from rollouts.actions.preconditions import require_reason
from rollouts.core.watch.sequential_test import PAGE
from rollouts.queries.alarms import loud_alarms
from serving.models import Environment
from serving.traffic.queries.routes import route_of

log = structlog.get_logger(__name__)
ALARMS = Actor.system("alarms")


def open_for_alarms() -> None:
    """Opens an incident for each live, unmuted alarm that pages, of a model that has none there. Safe to do twice."""
    for alarm in loud_alarms().filter(tier=PAGE.name):
        # One that is open takes the alarm, and what a person closed stays closed although its alarm goes on.
        of_model = Incident.objects.filter(environment=alarm.environment, model=alarm.model)
        if not of_model.filter(Q(closed_at=None) | Q(closed_at__gte=alarm.opened_at)).exists():
            title = f"{alarm.objective} at {alarm.facts.get('burn', 0):.1f} times the objective"
            _open(ALARMS, alarm.model, alarm.environment, alarm.release, title)


def open_incident(*, actor: Actor, model: ServedModel, environment: Environment, title: str) -> Incident:
    """Raises Refused, Invalid("reason_missing"), StateChanged("incident_open")."""
    require(actor, Verb.HANDLE_ALARM, model.team.slug, model.slug)
    title = " ".join(title.split())
    route = route_of(model, environment)
    found = _open(actor, model, environment, route.stable if route else None, require_reason(title))
    if found is None:
        other = Incident.objects.get(model=model, environment=environment, state=IncidentState.OPEN)
        raise StateChanged(
            "incident_open",
            f"Incident {other.pk} of {model.slug} is open in {environment.slug}. Add a note to it, or close it first.",
            incident=other.pk,
        )
    return found


def add_note(*, actor: Actor, incident: Incident, expected_version: int, reason: str) -> Incident:
    """Adds what a person saw or did to the timeline, also after the end."""
    with transaction.atomic():
        incident = _lock(actor, incident, expected_version)
        note = require_reason(reason)
        incident.version += 1
        incident.save(update_fields=["version"])
        _append(incident, actor, note, verb="incident.noted")
    return incident


def close(*, actor: Actor, incident: Incident, expected_version: int, reason: str) -> Incident:
    """Ends it with its result: the cause, and what was done."""
    with transaction.atomic():
        incident = _lock(actor, incident, expected_version)
        result = require_reason(reason)
        changes: dict[str, Any] = {"closed_at": clock.now(), "closed_by": actor.name, "result": result}
        transition(incident, IncidentState.CLOSED, moves=MOVES, **changes)
        _append(incident, actor, result, verb="incident.closed", from_state=IncidentState.OPEN)
    return incident


def _open(
    actor: Actor, model: ServedModel, environment: Environment, release: Release | None, title: str
) -> Incident | None:
    """None if one is open already."""
    now = clock.now()
    try:
        kept = evidence(model, environment, release, now)
    except (ArithmeticError, LookupError, TypeError, ValueError):  # odd evidence must not cost the incident
        log.warning("evidence_not_kept", model=model.slug, traceback=traceback.format_exc())
        kept = {"at": now.isoformat()}
    try:
        with transaction.atomic():
            found = Incident.objects.create(
                environment=environment, model=model, release=release, title=title[:200], kept=kept, opened_at=now,
                opened_by=actor.name,
            )  # fmt: skip
            _append(found, actor, title, verb="incident.opened")
    except IntegrityError:
        return None
    return found


def _lock(actor: Actor, incident: Incident, expected_version: int) -> Incident:
    require(actor, Verb.HANDLE_ALARM, incident.model.team.slug, incident.model.slug)
    related = Incident.objects.select_related("environment", "model__team", "release")
    found = related.select_for_update(no_key=True, of=("self",)).get(pk=incident.pk)
    require_version(found.version, expected_version, f"Incident {found.pk}", state=found.state)
    return found


def _append(incident: Incident, actor: Actor, reason: str, *, verb: str, from_state: str = "") -> None:
    append_event(
        verb=verb, subject_type="incident", subject_id=incident.pk, actor=actor, from_state=from_state,
        to_state=incident.state, reason=reason,
        facts={
            "model": incident.model.slug, "environment": incident.environment.slug, "title": incident.title,
            "release": incident.release.name if incident.release else None,
        },
    )  # fmt: skip
