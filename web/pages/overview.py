"""The overview: what needs the person, what moves, and what serves where, with the way back that is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from accounts.api.requests import actor_of
from accounts.core.access import Actor, Verb, may
from notifications.queries import given_up_on
from registry.core.ownership import Contact, contacts_of
from registry.queries.releases import models_seen, sight_of
from rollouts.core.lifecycle import RolloutState
from rollouts.queries.inbox import waiting_approvals, waiting_waivers
from rollouts.queries.places import Place, places_of
from rollouts.queries.traffic import Lately, lately_of
from serving.environments.core.sleep_lifecycle import SleepState
from web.pages.session import live
from web.pages.traffic_cells import TrafficCell, traffic_cell
from web.pages.unread import Unread, unread_environments
from web.templatetags.ui import guard_words

#: As many rows of one environment as one looks through, the calm ones left off first; the list of models has them all.
MOST_ROWS = 40
#: As many rollouts under way as have a part of their own, the stuck ones and the newest first; each row has its way back, too.
MOST_MOVING = 12
#: As many things that need the person as one page names; their own pages have them all.
MOST_NEEDS = 10


#: Words for the state of a model.


def _models(*sight: Any) -> QuerySet[Any, Any]:
    return models_seen(*sight).only("slug", "objectives", "ownership", "team__slug")


#: Of the event stream: what the page shows.
_TOPICS = ("rollouts", "approvals", "deployments", "models", "health", "nodes")


@dataclass(frozen=True)
class Need:
    """Something that waits for the person: `kind` is a colour's kind or a state's word."""

    kind: str
    title: str
    text: str
    url: str
    label: str
    since: datetime | None = None
    contacts: Sequence[Contact] = ()


def _facts(request: HttpRequest) -> dict[str, Any]:
    actor = actor_of(request)
    models = list(_models(*sight_of(actor)))
    places = places_of(models) if models else {}
    every = [place for there in places.values() for place in there]
    rows = {environment: _rows_of(there) for environment, there in places.items()}
    now = timezone.now()
    lately = lately_of(models, now) if models else {}
    unread = unread_environments(lately, now)
    unseen = [place for place in every if place.is_awake and not place.is_lost and place.environment.pk in unread]
    mine = [one for one in waiting_approvals(actor) if not one.why_not] if models else []
    waivers = [one for one in waiting_waivers(actor) if not one.why_not] if models else []
    moving = sorted((place for place in every if place.moving is not None), key=_first_to_look_at)
    shown = moving[:MOST_MOVING]
    above = {place.key for place in shown}
    lost = [_lost(place, _traffic(place, lately)) for place in every if place.is_lost]
    needs = [
        *_unread(unseen, unread), *lost, *_alarms(every), *_stuck(moving), *(_approval(one) for one in mine),
        *(_waiver(one) for one in waivers), *_webhooks(actor),
    ]  # fmt: skip
    return {
        "lost_models": len(lost) + len(unseen),
        "live_alarms": sum(len(place.alarms) for place in every),
        "no_green": bool(unseen) or any(place.is_doubted for place in every),
        "models": models,
        "needs": needs[:MOST_NEEDS],
        "needs_more": max(0, len(needs) - MOST_NEEDS),
        "approvals_waiting": len(mine) + len(waivers),
        "topics": " ".join([*_TOPICS, *(f"rollout:{one.pk}" for place in shown if (one := place.moving) is not None)]),
        "moving": [_row(actor, place) for place in shown],
        "moving_more": len(moving) - len(shown),
        "ended": _last_ended(every),
        "environments": [
            {
                "environment": environment,
                "unread": unread.get(environment.pk),
                "rows": [
                    {**_row(actor, one), "is_above": one.key in above, "traffic": _traffic(one, lately)}
                    for one in there
                ],
                "more": len(places[environment]) - len(there),
            }
            for environment, there in rows.items()
        ],
    }


def _traffic(place: Place, lately: Mapping[tuple[int, int], Lately]) -> TrafficCell | None:
    return traffic_cell(lately.get((place.environment.pk, place.model.pk)), place.model.objectives)


def _rows_of(places: list[Place]) -> list[Place]:
    """Those that the page has room for: the lost ones first, then those with an alarm, then in the order of the models."""
    kept = places
    if len(places) > MOST_ROWS:
        keys = {place.key for place in sorted(places, key=lambda one: (_urgency(one), _is_calm(one)))[:MOST_ROWS]}
        kept = [place for place in places if place.key in keys]
    return sorted(kept, key=_urgency)


def _urgency(place: Place) -> tuple[bool, bool]:
    return not place.is_lost, not place.alarms


def _is_calm(place: Place) -> bool:
    """Whether nothing moves there, no way back is about to close, and every server answers, or the model sleeps."""
    is_well = (place.health is not None and place.health.state == "healthy") or place.sleep == SleepState.ASLEEP
    return is_well and place.moving is None and place.back_until is None


def _first_to_look_at(place: Place) -> tuple[bool, int]:
    assert place.moving is not None
    return place.moving.state != RolloutState.STUCK, -place.moving.pk


def _last_ended(places: list[Place]) -> Place | None:
    """Whether the rollout that ended last was the last rollout."""
    ended = [(one.outcome_at, one.pk, place) for place in places if (one := place.last) is not None and one.ended_at]
    return max(ended)[-1] if ended else None


def _row(actor: Actor, place: Place) -> dict[str, Any]:
    """The place, and whether and how this person may take its traffic back."""
    model = place.model
    may_shut = place.back_to is not None and may(actor, Verb.ROLL_BACK, model.team.slug, model.slug)
    return {"place": place, "may_shut": may_shut, "reason": f"Rolled back by {actor.name}, from the overview."}


def _lost(place: Place, traffic: TrafficCell | None) -> Need:
    """A model whose stable release has no server that is known to answer."""
    health, title = place.health, f"{place.model.slug} in {place.environment.title}: no server is known to answer"
    wanted = f"0 of {health.wanted} servers" if health is not None else "No server is running: 0 servers"
    text = f"{wanted} of r{place.number} are known to answer. "
    since = None
    if health is not None and health.silent:
        names = ", ".join(health.silent)
        text += f"The agent of {names} does not report, so its servers cannot be looked at. "
        since = health.silent_since
    text += traffic.failing_sentence if traffic is not None else "No gateway has counted its requests yet."
    url = f"{reverse('model', args=[place.model.slug])}"
    return Need("lost", title, text, url, "Open the model", since, contacts_of(place.model.ownership))


def _unread(places: list[Place], unread: Mapping[int, Unread]) -> list[Need]:
    """Environments in which it is unknown whether the models serve users."""
    found = []
    for environment in {place.environment.pk: place.environment for place in places}.values():
        models = sum(place.environment.pk == environment.pk for place in places)
        one, count = unread[environment.pk], "1 model" if models == 1 else f"{models} models"
        text = f"{one.why}, so it is unknown whether users of {count} are served. {one.next_step}"
        url = reverse("settings_environment", args=[environment.slug])
        found.append(Need("lost", f"{environment.title}: {one.title}", text, url, "See its gateways", one.since))
    return found


def _alarms(places: list[Place]) -> list[Need]:
    return [
        Need(
            alarm.state, f"{place.model.slug} in {place.environment.title} misses an objective: {guard_words(alarm.objective)}",
            alarm.reason, reverse("alarm", args=[alarm.pk]), "Open the alarm", alarm.opened_at,
            contacts_of(place.model.ownership),
        )
        for place in places
        for alarm in place.alarms
    ]  # fmt: skip


def _stuck(moving: list[Place]) -> list[Need]:
    """Rollbacks that did not come through."""
    return [
        Need(
            "stuck", f"{place.model.slug} in {place.environment.title}: the rollback is stuck", one.reason,
            reverse("rollout", args=[one.pk]), "Open the rollout", one.decided_at or one.created_at,
            contacts_of(place.model.ownership),
        )
        for place in moving
        if (one := place.moving) is not None and one.state == RolloutState.STUCK
    ]  # fmt: skip


def _approval(waiting: Any) -> Need:
    rollout = waiting.rollout
    return Need(
        "awaiting_approval",
        f"{rollout.model.slug} {rollout.candidate.name} in {rollout.environment.title}: its {waiting.stage} needs your approval",
        waiting.will,
        reverse("approvals"),
        "Look and decide",
        waiting.since,
    )


def _waiver(waiting: Any) -> Need:
    release = waiting.release
    title = f"{release.model.slug} {release.name} needs a review of {' and '.join(waiting.kinds)} before it can run"
    return Need("waiting", title, waiting.will, reverse("approvals"), "Look and decide", release.sealed_at)


def _webhooks(actor: Actor) -> list[Need]:
    """Receivers that the last event did not reach."""
    return [
        Need(
            "gave_up", f"Webhook {one.title or one.target} is failing", "Sluicegate has stopped retrying the last event.",
            reverse("webhook", args=[one.pk]), "See the deliveries",
        )
        for one in given_up_on(actor)[:MOST_NEEDS]
    ]  # fmt: skip


@login_required
def overview(request: HttpRequest) -> HttpResponse:
    return render(request, "web/overview.html", _facts(request))


@live
def overview_live(request: HttpRequest) -> HttpResponse:
    return render(request, "web/_overview_live.html", _facts(request))
