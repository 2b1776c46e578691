"""Named reads of webhooks, their deliveries, and the events that they mean."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from accounts.core.access import Actor, Verb, teams_where
from audit.queries import events_of_team
from ledger.core.errors import NotFound
from ledger.models import Event
from ledger.queries import events
from notifications.core.delivery import ENDED, OPEN, DeliveryState
from notifications.models import Delivery, Webhook

#: More deliveries of one rollout than this are not listed.
MOST_TOLD = 50


def webhooks_of(actor: Actor) -> QuerySet[Webhook]:
    """The webhooks that the actor may manage, with `waiting` (deliveries to come) and `last_state` (of the last that ended)."""
    return _webhooks(*_sight_of(actor))


def _sight_of(actor: Actor) -> tuple[bool, frozenset[str] | None]:
    """(whether the actor may manage the webhooks without a team, slugs of the teams with manageable webhooks or None for all)."""
    if actor.is_admin or actor.is_system:
        return True, None
    is_whole = actor.scope.has_model(None)  # a webhook covers all models of the team
    return False, teams_where(actor, Verb.MANAGE_WEBHOOKS) if is_whole else frozenset()


def _webhooks(has_teamless: bool, teams: frozenset[str] | None) -> QuerySet[Webhook]:
    its = Delivery.objects.filter(webhook=OuterRef("pk"))
    waiting = its.filter(state__in=OPEN).values("webhook").annotate(count=Count("pk")).values("count")
    ended = its.filter(state__in=ENDED).order_by("-created_at").values("state")[:1]
    rows = Webhook.objects.select_related("team").annotate(
        waiting=Coalesce(Subquery(waiting), 0), last_state=Coalesce(Subquery(ended), Value(""))
    )
    if teams is not None:
        return rows.filter(team__slug__in=teams)
    return rows if has_teamless else rows.exclude(team=None)


def given_up_on(actor: Actor) -> list[Webhook]:
    """The actor's active webhooks with a last delivery that was given up."""
    return list(_given_up_on(*_sight_of(actor)))


def _given_up_on(*sight: Any) -> QuerySet[Any, Any]:
    return _webhooks(*sight).filter(Q(last_state=DeliveryState.GAVE_UP), is_active=True)


def get_webhook(actor: Actor, pk: int) -> Webhook:
    """The webhook. Raises NotFound, also if the actor may not manage it."""
    found = webhooks_of(actor).filter(pk=pk).first()
    if found is None:
        raise NotFound(
            "no_such_webhook", f"There is no webhook {pk} that you may manage. List them to see their numbers."
        )
    return found


def get_delivery(webhook: Webhook, pk: UUID | str) -> Delivery:
    """One delivery of the webhook, with its attempts. Raises NotFound."""
    found = deliveries_of(webhook).filter(pk=pk).first()
    if found is None:
        raise NotFound(
            "no_such_delivery",
            f"Webhook {webhook.pk} has no delivery {pk}. Its log names them; those that ended are kept for 30 days.",
        )
    return found


def deliveries_of(webhook: Webhook) -> QuerySet[Delivery]:
    """The delivery log, newest first, with events and attempts."""
    rows = Delivery.objects.filter(webhook=webhook).select_related("event", "person").prefetch_related("tries")
    return rows.order_by("-created_at", "-event_id", "-pk")


def events_for(webhook: Webhook) -> QuerySet[Event]:
    """Events that the webhook's team may read, of all verbs; every event if it has no team."""
    return events() if webhook.team is None else events_of_team(webhook.team.slug)


def deliveries_of_rollout(rollout_id: int, team: str) -> list[dict[str, Any]]:
    """Deliveries of a rollout's events to its team's webhooks and to webhooks without a team, the oldest first, without targets.

    `{"webhook", "kind", "verb", "state", "attempts", "at", "ended_at"}`; those that ended are kept for 30 days.
    """
    seqs = list(
        events().filter(subject_type="rollout", subject_id=str(rollout_id)).order_by("seq").values_list("pk", flat=True)
    )
    rows = Delivery.objects.filter(Q(webhook__team__slug=team) | Q(webhook__team=None), event_id__in=seqs)
    return [
        {
            "webhook": one.webhook.title or f"webhook {one.webhook_id}", "kind": one.webhook.kind,
            "verb": one.event.verb if one.event else "", "state": one.state, "attempts": one.attempts,
            "at": one.created_at.isoformat(), "ended_at": one.ended_at.isoformat() if one.ended_at else None,
        }
        for one in rows.select_related("webhook", "event").order_by("event_id", "webhook_id")[:MOST_TOLD]
    ]  # fmt: skip
