"""Owners of a rollout or an alarm: people who get a mail of it, though it does not wait for them."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from accounts.core.access import MAY, Role, Verb
from accounts.models import User
from accounts.queries import active_users, memberships_with
from rollouts.models import Alarm, Rollout

_READERS = sorted(role.value for role, verbs in MAY.items() if Verb.READ in verbs)


def owners_of(rollout_id: int) -> QuerySet[User]:
    """The model team, and who made the candidate or asked for the rollout as far as they may still read it. Nobody's: no rollout."""
    rollout = Rollout.objects.select_related("model", "candidate").filter(pk=rollout_id).first()
    if rollout is None:
        return active_users().none()
    return _owners(rollout.model.team_id, [rollout.candidate.author_id, rollout.requested_by_id])


def alarm_owners(alarm_id: int) -> QuerySet[User]:
    """The same of the model and the release that was stable when the alarm opened."""
    alarm = Alarm.objects.select_related("model", "release").filter(pk=alarm_id).first()
    return _owners(alarm.model.team_id, [alarm.release.author_id]) if alarm is not None else active_users().none()


def _owners(team: int, people: list[int | None]) -> QuerySet[User]:
    team_of_model = memberships_with([Role.MODEL_TEAM.value], team).values("user")
    readers = memberships_with(_READERS, team).values("user")
    involved = [pk for pk in people if pk is not None]
    still_reads = Q(is_superuser=True) | Q(pk__in=readers)
    return active_users().filter(Q(pk__in=team_of_model) | (Q(pk__in=involved) & still_reads))
