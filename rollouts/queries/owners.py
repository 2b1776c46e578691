"""Whose a rollout is: who hears of it though nobody waits for them."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from accounts.core.access import MAY, Role, Verb
from accounts.models import User
from accounts.queries import active_users, memberships_with
from rollouts.models import Rollout

_READERS = sorted(role.value for role, verbs in MAY.items() if Verb.READ in verbs)


def owners_of(rollout_id: int) -> QuerySet[User]:
    """The model team, and who made the candidate or asked for the rollout as far as they may still read it. Nobody's: no rollout."""
    rollout = Rollout.objects.select_related("model", "candidate").filter(pk=rollout_id).first()
    if rollout is None:
        return active_users().none()
    team = rollout.model.team_id
    team_of_model = memberships_with([Role.MODEL_TEAM.value], team).values("user")
    readers = memberships_with(_READERS, team).values("user")
    involved = [pk for pk in (rollout.candidate.author_id, rollout.requested_by_id) if pk is not None]
    still_reads = Q(is_superuser=True) | Q(pk__in=readers)
    return active_users().filter(Q(pk__in=team_of_model) | (Q(pk__in=involved) & still_reads))
