"""Recipients of mails about an event: people who may approve, and owners of a model that was rolled back or has an alarm."""

from __future__ import annotations

from dataclasses import dataclass

from accounts.models import User
from ledger.models import Event
from notifications.models import MailChoice
from rollouts.core.watch.sequential_test import PAGE
from rollouts.queries.inbox import WaitingApproval, approval_need
from rollouts.queries.owners import alarm_owners, owners_of

APPROVAL = "rollout.approval_requested"
ROLLBACKS = ("rollout.second_look", "rollout.rolled_back", "rollout.stuck")
ALARM = "alarm.opened"
#: The verbs of events that people get mails of.
PERSONAL = (APPROVAL, *ROLLBACKS, ALARM)


@dataclass(frozen=True)
class Recipients:
    """`need`: the occasion, equal for repeated events; `approval`: the requested approval, if any."""

    need: str
    people: tuple[User, ...]
    approval: WaitingApproval | None = None


def recipients_of(event: Event) -> Recipients | None:
    """Recipients of a mail about the event at present, or None.

    Only active users with an address who did not switch it off.
    """
    if not event.subject_id.isdecimal():
        return None
    pk = int(event.subject_id)
    if event.verb == APPROVAL:
        found = approval_need(pk)
        if found is None:
            return None
        waiting, people = found
        return Recipients(f"approval:{pk}:{waiting.stage}", _reachable(people, "wants_approvals"), waiting)
    if event.verb == ALARM and event.facts["tier"] == PAGE.name:
        return Recipients(f"{event.verb}:{pk}:{event.seq}", _reachable(list(alarm_owners(pk)), "wants_rollbacks"))
    if event.verb not in ROLLBACKS:
        return None
    return Recipients(f"{event.verb}:{pk}", _reachable(list(owners_of(pk)), "wants_rollbacks"))


def _reachable(people: list[User], choice: str) -> tuple[User, ...]:
    refusing = set(
        MailChoice.objects.filter(user__in=[one.pk for one in people], **{choice: False}).values_list("user", flat=True)
    )
    return tuple(one for one in people if one.email and one.pk not in refusing)


def mail_choice_of(user: User) -> MailChoice:
    """The person's choice of mails; all of them by default."""
    return MailChoice.objects.filter(user=user).first() or MailChoice(user=user)
