"""The verbs of deliveries: collect new events, claim, record how it went, send again.

The log of events is the outbox: an event is written in the transaction of its change and never changes, and numbers
become readable in their order. So a webhook's `last_seq` is a cursor that can miss none (docs/decisions/0005).
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Subquery, When
from django.db.models.functions import Now
from django.utils import timezone

from accounts.core.access import Actor
from ledger.actions import make_due_now
from ledger.actions.events import append_event
from ledger.actions.transitions import transition_rows
from ledger.core.errors import Invalid
from ledger.models import Event
from ledger.queries import events, first_seq_since, head_seq, head_seq_expression
from notifications.actions.webhooks import receiver_of, require_manager
from notifications.adapters import mail_sender
from notifications.core.delivery import ENDED, MOVES, OPEN, DeliveryState, Outcome, ReceiverKind, after, meant_by
from notifications.core.formats import IN_ORDER, WebhookFormat, verbs_for
from notifications.models import Attempt, Delivery, Webhook
from notifications.queries import events_for
from notifications.queries.recipients import PERSONAL, recipients_of

#: The one job that collects and sends for every webhook: a row that waits, and is called when there is work.
JOB = {"kind": "notifications.dispatch", "key": "all"}
#: Limits of one transaction: events read, and events taken.
SCAN, BATCH = 20_000, 500
MOST_REPLAYED = 10_000
KEPT_FOR = timedelta(days=30)
DROPPED_AT_ONCE = 1000
DISPATCHER = Actor.system("notifications")
D = DeliveryState


def wake_dispatcher() -> bool:
    """Whether there was anything to collect or to send; the job is then due. A few cheap looks when there was not."""
    if mail_sender.is_configured():
        people_row()
    is_behind = Webhook.objects.filter(is_active=True, last_seq__lt=head_seq_expression()).exists()
    if not is_behind and not due_deliveries().exists():
        return False
    make_due_now(**JOB)
    return True


def due_deliveries() -> QuerySet[Delivery]:
    """Every delivery that may be sent now, of webhooks that are on."""
    return Delivery.objects.filter(state__in=OPEN, due_at__lte=Now(), webhook__is_active=True)


def people_row() -> Webhook:
    """The one row from which people get mails of their own: a webhook like others, with a log, which administrators may turn off.

    It begins with what happens after it was first asked for.
    """
    columns = {
        "format": "",
        "title": "Mails to those who are concerned",
        "verbs": list(PERSONAL),
        "created_by": DISPATCHER.name,
    }
    return (
        Webhook.objects.filter(kind=ReceiverKind.PEOPLE).first()
        or Webhook.objects.get_or_create(
            team=None, kind=ReceiverKind.PEOPLE, target="people", defaults={**columns, "last_seq": head_seq()}
        )[0]
    )


def collect() -> int:
    """How many deliveries were made out of new events, for every webhook that is behind."""
    head = head_seq()
    behind = Webhook.objects.filter(is_active=True, last_seq__lt=head).values_list("pk", flat=True)
    return sum(_collect_for(pk) for pk in list(behind))


def _collect_for(webhook_id: int) -> int:
    made, is_behind = 0, True
    while is_behind:
        with transaction.atomic():
            free = Webhook.objects.select_for_update(no_key=True, skip_locked=True, of=("self",)).select_related("team")
            row = free.filter(pk=webhook_id, is_active=True).first()
            if row is None:  # gone, off, or another worker is at it
                break
            head = head_seq()
            upto = min(head, row.last_seq + SCAN)
            wanted = events_for(row).filter(seq__gt=row.last_seq, seq__lte=upto, verb__in=_verbs_of(row))
            wanted = wanted.exclude(facts__has_key="quiet")  # an alarm that is muted
            seqs = list(wanted.order_by("seq").values_list("seq", flat=True)[:BATCH])
            upto = seqs[-1] if len(seqs) == BATCH else upto
            _make(row, seqs)
            Webhook.objects.filter(pk=row.pk).update(last_seq=upto)
            made, is_behind = made + len(seqs), upto < head
    return made


def _verbs_of(row: Webhook) -> list[str]:
    if row.kind == ReceiverKind.PEOPLE:  # the row of an older installation lacks newer ones
        return list(PERSONAL)
    verbs = meant_by(row.verbs)
    return verbs_for(WebhookFormat(row.format), verbs) if row.format else verbs


def _make(row: Webhook, seqs: list[int]) -> None:
    """Creates one delivery for each event, or for each person it concerns. Existing deliveries stay."""
    if row.kind == ReceiverKind.PEOPLE:
        fresh = [one for event in events().filter(seq__in=seqs).order_by("seq") for one in _to_people(row, event)]
    else:
        fresh = [Delivery(webhook=row, event_id=seq, due_at=Now()) for seq in seqs]
    Delivery.objects.bulk_create(fresh, ignore_conflicts=True, batch_size=1000)


def _to_people(row: Webhook, event: Event) -> list[Delivery]:
    found = recipients_of(event) if mail_sender.is_configured() else None
    if found is None:
        return []
    return [Delivery(webhook=row, event=event, person=one, need=found.need, due_at=Now()) for one in found.people]


def next_due() -> list[tuple[int, uuid.UUID]]:
    """(webhook, the oldest event's delivery that is due), for every webhook that has one.

    At PagerDuty and Alertmanager the events of one subject go in their order: a trigger that comes after its resolve would wake
    people for ever. All alarms count as one subject, because the next alarm of an objective has the same alert.
    """
    first = Delivery.objects.filter(webhook=OuterRef("pk"), state__in=OPEN, due_at__lte=Now()).order_by("event_id")
    before = Delivery.objects.filter(
        webhook=OuterRef("webhook"), state__in=OPEN, event__lt=OuterRef("event"),
        event__subject_type=OuterRef("event__subject_type"),
    ).filter(Q(event__subject_type="alarm") | Q(event__subject_id=OuterRef("event__subject_id")))  # fmt: skip
    in_order = Subquery(first.exclude(Exists(before)).values("pk")[:1])
    rows = Webhook.objects.filter(is_active=True).annotate(
        first=Case(When(format__in=IN_ORDER, then=in_order), default=Subquery(first.values("pk")[:1]))
    )
    return [(pk, first) for pk, first in rows.values_list("pk", "first") if first is not None]


def start_test(*, actor: Actor, webhook: Webhook) -> Delivery:
    """A test delivery that the caller sends at once and records; of mails to people, one to the caller. Raises Refused."""
    require_manager(actor, webhook)
    pk = uuid.uuid4()
    its = {"person_id": actor.user_id, "need": f"test:{pk}"} if webhook.kind == ReceiverKind.PEOPLE else {}
    with transaction.atomic():
        made = Delivery.objects.create(pk=pk, webhook=webhook, due_at=Now() + _lease(), attempts=1, **its)
        Attempt.objects.create(delivery=made, number=1, at=timezone.now())
    return made


def claim_delivery(delivery_id: uuid.UUID) -> Delivery | None:
    """The delivery, now being sent by the caller; None when it is not due any more. `attempts` is the caller's number.

    If its outcome is never recorded, it is due again after the lease: the dead sender may have sent it, and twice is better
    than never.
    """
    with transaction.atomic():
        # No join here: an UPDATE by way of a subquery does not look again when two claim at once.
        due = Delivery.objects.filter(pk=delivery_id, state__in=OPEN, due_at__lte=Now())
        if not due.update(due_at=Now() + _lease(), attempts=F("attempts") + 1):
            return None
        delivery = Delivery.objects.select_related("webhook", "event", "person").get(pk=delivery_id)
        Attempt.objects.create(delivery=delivery, number=delivery.attempts, at=timezone.now())
    return delivery


def _lease() -> timedelta:
    return timedelta(seconds=settings.WEBHOOK_TIMEOUT_S + settings.JOB_LEASE_S)


def record_attempt(delivery_id: uuid.UUID, number: int, outcome: Outcome) -> bool:
    """Whether the outcome of this attempt was written; False when it is not the last one any more, or the webhook is gone.

    After the last attempt it appends the event `webhook.gave_up`.
    """
    with transaction.atomic():
        mine = Delivery.objects.select_for_update(no_key=True, of=("self",)).select_related("webhook__team", "event")
        delivery = mine.filter(pk=delivery_id, attempts=number, state__in=OPEN).first()
        if delivery is None:
            return False
        Attempt.objects.filter(delivery=delivery, number=number).update(
            ended_at=timezone.now(), status_code=outcome.status_code, error=outcome.error, snippet=outcome.snippet,
            duration_ms=outcome.duration_ms,
        )  # fmt: skip
        to, pause_s = after(number - delivery.attempts_before, outcome, random.random())
        if delivery.event is None and to is D.FAILED:
            to = D.GAVE_UP  # a test is tried once
        ended_at = timezone.now() if to in ENDED else None
        _move([delivery], to, due_at=Now() + timedelta(seconds=pause_s), ended_at=ended_at)
        if to is D.GAVE_UP and delivery.event is not None and not delivery.event.verb.startswith("webhook."):
            _tell_of_giving_up(delivery, outcome)
    if outcome.is_gone:  # not in the transaction above: a replay locks the webhook before its deliveries
        _turn_off(delivery.webhook_id)
    return True


def _tell_of_giving_up(delivery: Delivery, outcome: Outcome) -> None:
    """Appends `webhook.gave_up`. The caller skips webhook events: two broken webhooks would report each other for ever."""
    row, event = delivery.webhook, delivery.event
    assert event is not None
    tries = delivery.attempts - delivery.attempts_before
    append_event(
        verb="webhook.gave_up", subject_type="webhook", subject_id=row.pk, actor=DISPATCHER,
        reason=f"{receiver_of(row)} confirmed event {event.seq} ({event.verb}) in none of {tries} attempts: {outcome.error}",
        facts={"team": row.team.slug if row.team else None, "delivery": str(delivery.pk), "event": event.seq},
    )  # fmt: skip


def _turn_off(webhook_id: int) -> None:
    """Turns off a webhook whose receiver answered 410 Gone."""
    with transaction.atomic():
        if not Webhook.objects.filter(pk=webhook_id, is_active=True).update(is_active=False, version=F("version") + 1):
            return
        row = Webhook.objects.select_related("team").get(pk=webhook_id)
        append_event(
            verb="webhook.changed", subject_type="webhook", subject_id=row.pk, actor=DISPATCHER,
            reason=f"Turned off, because {receiver_of(row)} answered 410: it wants nothing more.",
            facts={"team": row.team.slug if row.team else None, "is_active": False},
        )  # fmt: skip


def _move(deliveries: Iterable[Delivery], to: DeliveryState, **columns: Any) -> None:
    """The caller holds the rows' locks."""
    pks: dict[DeliveryState, list[uuid.UUID]] = {}
    for delivery in deliveries:
        pks.setdefault(D(delivery.state), []).append(delivery.pk)
    for seen, those in pks.items():
        transition_rows(Delivery.objects.filter(pk__in=those), seen, to, moves=MOVES, **columns)


@transaction.atomic
def replay_delivery(*, actor: Actor, delivery: Delivery) -> bool:
    """Whether it is sent again, with the same id and body; False when it is on its way still. Raises Refused, Invalid."""
    require_manager(actor, delivery.webhook)
    if delivery.event_id is None:
        raise Invalid("test_not_replayed", "A test is not sent again. Send a new test.")
    return bool(_replay(actor, delivery.webhook, Q(pk=delivery.pk)))


@transaction.atomic
def replay_since(*, actor: Actor, webhook: Webhook, since: datetime) -> int:
    """How many events since then are sent (again): those sent before, and those that it never got.

    Raises Refused, and Invalid for too many.
    """
    row = Webhook.objects.select_for_update(no_key=True, of=("self",)).select_related("team").get(pk=webhook.pk)
    require_manager(actor, row)
    first = first_seq_since(since)
    wanted = events_for(row).filter(seq__gte=first, seq__lte=row.last_seq, verb__in=_verbs_of(row))
    seqs = list(wanted.order_by("seq").values_list("seq", flat=True)[: MOST_REPLAYED + 1])
    if len(seqs) > MOST_REPLAYED:
        raise Invalid(
            "too_many_events",
            f"More than {MOST_REPLAYED} events happened since then. Choose a later time.",
            field="since",
        )
    all_of_them = Delivery.objects.filter(webhook=row, event_id__in=seqs)
    known = all_of_them.count()
    _make(row, seqs)
    return _replay(actor, row, Q(event_id__in=seqs), made=all_of_them.count() - known)


def _replay(actor: Actor, row: Webhook, which: Q, *, made: int = 0) -> int:
    """How many deliveries are on their way that were not: those that had ended, and the `made` new ones."""
    if not row.is_active:
        raise Invalid("webhook_off", f"Webhook {row.pk} is off. Turn it on, then send again.")
    ended = list(Delivery.objects.select_for_update(no_key=True).filter(which, webhook=row, state__in=ENDED))
    _move(ended, D.PENDING, due_at=Now(), ended_at=None, attempts_before=F("attempts"))
    moved = len(ended) + made
    if moved:
        facts = {"team": row.team.slug if row.team else None, "deliveries": moved}
        append_event(verb="webhook.replayed", subject_type="webhook", subject_id=row.pk, actor=actor, facts=facts)
        make_due_now(**JOB)
    return moved


def drop_old() -> int:
    """How many deliveries were dropped that ended more than 30 days ago; a replay makes them again from the events."""
    old = Delivery.objects.filter(ended_at__lt=timezone.now() - KEPT_FOR).values_list("pk", flat=True)[:DROPPED_AT_ONCE]
    return Delivery.objects.filter(pk__in=list(old)).delete()[1].get("notifications.Delivery", 0)
