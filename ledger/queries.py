"""Named reads of the ledger."""

from __future__ import annotations

from bisect import bisect_left
from datetime import datetime
from uuid import UUID

from django.db.models import Count, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from accounts.core.access import Actor, Verb, may
from accounts.core.errors import NotFound
from ledger.core.delivery import ENDED, OPEN
from ledger.models import ChainHead, Delivery, Event, Subscription
from ledger.scope import events_of_team


def head_seq() -> int:
    """The last event's number; 0 before the first. Every event up to it can be read."""
    return ChainHead.objects.filter(pk=1).values_list("seq", flat=True).first() or 0


def first_seq_since(instant: datetime) -> int:
    """The number of the first event that is not older than `instant`. Numbers have no gaps, so a few looks are enough."""

    def at(seq: int) -> datetime:
        return Event.objects.values_list("at", flat=True).get(seq=seq)

    return 1 + bisect_left(range(1, head_seq() + 1), instant, key=at)


def subscriptions_of(actor: Actor) -> QuerySet[Subscription]:
    """The webhooks that the actor may manage, with `waiting` (deliveries to come) and `last_state` (of the last that ended)."""
    its = Delivery.objects.filter(subscription=OuterRef("pk"))
    waiting = its.filter(state__in=OPEN).values("subscription").annotate(count=Count("pk")).values("count")
    ended = its.filter(state__in=ENDED).order_by("-created_at").values("state")[:1]
    rows = Subscription.objects.select_related("team").annotate(
        waiting=Coalesce(Subquery(waiting), 0), last_state=Coalesce(Subquery(ended), Value(""))
    )
    if actor.is_admin or actor.is_system:
        return rows
    teams = {team for team, _ in actor.roles if may(actor, Verb.MANAGE_WEBHOOKS, team)}
    return rows.filter(team__slug__in=teams)


def get_subscription(actor: Actor, pk: int) -> Subscription:
    """Raises NotFound, also for one that the actor may not manage."""
    found = subscriptions_of(actor).filter(pk=pk).first()
    if found is None:
        raise NotFound(
            "no_such_webhook", f"There is no webhook {pk} that you may manage. List them to see their numbers."
        )
    return found


def get_delivery(subscription: Subscription, pk: UUID | str) -> Delivery:
    """One delivery of the webhook, with its attempts. Raises NotFound."""
    found = deliveries_of(subscription).filter(pk=pk).first()
    if found is None:
        raise NotFound(
            "no_such_delivery",
            f"Webhook {subscription.pk} has no delivery {pk}. Its log names them; those that ended are kept for 30 days.",
        )
    return found


def deliveries_of(subscription: Subscription) -> QuerySet[Delivery]:
    """The delivery log, newest first, with events and attempts."""
    rows = Delivery.objects.filter(subscription=subscription).select_related("event").prefetch_related("tries")
    return rows.order_by("-created_at", "-event_id", "-pk")


def events_for(subscription: Subscription) -> QuerySet[Event]:
    """What the webhook's team may read, or everything when it is nobody's, whatever its verbs."""
    return Event.objects.all() if subscription.team is None else events_of_team(subscription.team.slug)
