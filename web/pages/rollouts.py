"""Rollouts: the list, and one rollout live, with the verbs that people have."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from accounts.api.requests import actor_of
from accounts.core.access import Actor, Verb, may
from ledger.core.errors import DomainError, Invalid
from registry.core.ownership import contacts_of
from registry.models import Release
from registry.queries import get_release, newest_releases
from rollouts import actions
from rollouts.core.lifecycle import FINAL, WITHOUT_TRAFFIC, RolloutState
from rollouts.core.timeline import Moment
from rollouts.models import Rollout
from rollouts.queries import get_rollout
from rollouts.queries.alarms import prolonged_window
from rollouts.queries.gateway_reads import MISSED
from rollouts.queries.replay import beside_what_happened, plan_of
from rollouts.queries.request_examples import examples_by_arm
from rollouts.queries.rollout_view import followed_by, view_with
from rollouts.queries.timeline import attempts_per_s, to_go_ranges
from rollouts.queries.undo_window import is_closed, why_undo_closed
from serving.traffic.queries.routes import Followed
from web.pages.forms import NO_REASON, optional_reason_in, reason_in, refused, version_in
from web.pages.policy_form import CHOICES, JSON, policy_in
from web.pages.rollout_log import as_decided, at_decision, counted_at_zero, log_of
from web.pages.rollout_plots import Read, began_at, judged_again, plots_of
from web.pages.rollout_verbs import OPENING, SHUTTING, opening_buttons, shutting_buttons
from web.pages.session import live

#: Releases that a rollout without traffic may be superseded by.
NEWEST = 20


def _rollout(request: HttpRequest, pk: int) -> Rollout:
    return get_rollout(actor_of(request), pk)


def _facts(request: HttpRequest, rollout: Rollout) -> dict[str, Any]:
    actor, followed = actor_of(request), followed_by(rollout)
    live = view_with(rollout, followed)
    is_final = rollout.state in FINAL
    read = Read(rollout, live["approvals"])
    moments = [] if is_final else read.moments
    is_undo_closed = _is_undo_closed(rollout, followed, live)
    unseen_since = None if rollout.state == RolloutState.AWAITING_APPROVAL else _unseen_since(moments)
    return {
        **_clocks(rollout, live, moments),
        "unseen_since": unseen_since,
        "no_green": unseen_since is not None,
        "read": read,
        "gateways": [] if is_final or followed is None else followed.acks,
        "rollout": rollout,
        "comments": rollout.comments,  # type: ignore[attr-defined]
        "examples": examples_by_arm(rollout),
        "contacts": contacts_of(rollout.model.ownership),
        "live": live,
        "is_final": is_final,
        "is_polled": not is_final or live["undo_window"] is not None,
        "shutting": [] if is_final else shutting_buttons(actor, rollout, live),
        "opening": [] if is_final else opening_buttons(actor, rollout, live),
        "may_shut": may(actor, Verb.ROLL_BACK, rollout.model.team.slug, rollout.model.slug),
        "is_undo_closed": is_undo_closed,
        "why_undo_closed": why_undo_closed(rollout) if is_undo_closed else "",
        "prolonged": prolonged_window(rollout) if live["undo_window"] else None,
        "may_close_undo": may(actor, Verb.PROMOTE_NOW, rollout.model.team.slug, rollout.model.slug),
        "others": _others(actor, rollout),
        "pressed": _pressed(request),
    }


def _unseen_since(moments: list[Moment]) -> datetime | None:
    """When the engine last looked at the rollout, if it missed its looks since; each is a second after the other."""
    if not moments or timezone.now().timestamp() - moments[-1].at <= MISSED.total_seconds():
        return None
    return datetime.fromtimestamp(moments[-1].at, UTC)


def _clocks(rollout: Rollout, live: dict[str, Any], moments: list[Moment]) -> dict[str, Any]:
    """Times in seconds since the beginning, and the forecast from the latest ticks."""
    ranges, rate = to_go_ranges(moments), attempts_per_s(moments)
    decided = at_decision(live["decisions"])
    guards = [as_decided(guard, decided) for guard in live["guards"]]
    return {
        "began": began_at(rollout),
        "log": log_of(live["decisions"], began_at(rollout)),
        "rate_per_s": rate,
        "guards": [{**one, **_to_go(ranges.get(one["name"]), rate)} for one in guards],
        "at_decision": counted_at_zero(live),
    }


def _to_go(count: tuple[int, int] | None, rate_per_s: float | None) -> dict[str, Any]:
    """A guard's missing attempts, and their time at the present rate (s); None if unknown."""
    seconds = None if count is None or not rate_per_s else count[1] / rate_per_s
    return {"to_go_range": count, "to_go_s": seconds}


def _is_undo_closed(rollout: Rollout, followed: Followed | None, live: dict[str, Any]) -> bool:
    return followed is not None and is_closed(rollout, followed.route, known_open=live["undo_window"] is not None)


def _pressed(request: HttpRequest) -> str:
    """The button that sent the form shown again, so that the input stays in its place."""
    match = request.resolver_match
    return match.kwargs.get("verb", "supersede") if request.method == "POST" and match is not None else ""


def _others(actor: Actor, rollout: Rollout) -> list[Release]:
    """The releases that may take this rollout's place; none once it has traffic."""
    if rollout.state not in WITHOUT_TRAFFIC or not may(
        actor, Verb.SUPERSEDE_ROLLOUT, rollout.model.team.slug, rollout.model.slug
    ):
        return []
    excluded = {rollout.candidate_id, rollout.stable_id, rollout.displaced_id}
    return [one for one in newest_releases(rollout.model, NEWEST) if one.pk not in excluded and one.state == "sealed"]


@login_required
def rollout(request: HttpRequest, pk: int) -> HttpResponse:
    found = _rollout(request, pk)
    facts = _facts(request, found)
    return render(request, "rollouts/rollout.html", {**facts, "plots": plots_of(found, facts["read"])})


@live
def rollout_plots(request: HttpRequest, pk: int) -> HttpResponse:
    """The plots alone: they come less often than what else changes."""
    found = _rollout(request, pk)
    facts = {"rollout": found, "plots": plots_of(found), "is_final": found.state in FINAL}
    return render(request, "rollouts/_plots.html", facts)


@live
def rollout_live(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "rollouts/_live.html", {**_facts(request, _rollout(request, pk)), "is_fragment": True})


@login_required
def act_on(request: HttpRequest, pk: int, verb: str) -> HttpResponse:
    found = _rollout(request, pk)
    actor = actor_of(request)
    try:
        if verb in SHUTTING:
            reason = optional_reason_in(request) or NO_REASON
            done = SHUTTING[verb](actor=actor, rollout=found, reason=reason)
        elif verb in OPENING:
            more = {"stage": request.POST.get("stage") or None} if verb == "approve" else {}
            version, reason = version_in(request), reason_in(request)
            done = OPENING[verb](actor=actor, rollout=found, expected_version=version, reason=reason, **more)
        else:
            raise Invalid("no_such_verb", f"A rollout has no verb “{verb}”.")
    except DomainError as error:
        return refused(request, error, lambda: rollout(request, pk))
    messages.success(request, f"Done. The rollout is {done.outcome.replace('_', ' ')} now.")
    return redirect(reverse("rollout", args=[pk]))


@login_required
def supersede(request: HttpRequest, pk: int) -> HttpResponse:
    """The new rollout's page; the old one's when it is refused."""
    found = _rollout(request, pk)
    try:
        new = actions.supersede(
            actor=actor_of(request),
            rollout=found,
            expected_version=version_in(request),
            candidate=get_release(found.model.slug, request.POST.get("candidate", "")),
            reason=reason_in(request),
        )
    except DomainError as error:
        return refused(request, error, lambda: rollout(request, pk))
    messages.success(request, f"{new.candidate.name} takes the place of {found.candidate.name}.")
    return redirect(reverse("rollout", args=[new.pk]))


@login_required
def replay(request: HttpRequest, pk: int) -> HttpResponse:
    """What another policy would have decided at each tick, beside what happened."""
    found = _rollout(request, pk)
    preset, text = request.GET.get("preset", ""), request.GET.get("policy_json", "")
    facts: dict[str, Any] = {"rollout": found, "presets": CHOICES, "preset": preset, "policy_json": text}
    try:
        asked = {"policy": JSON, "policy_json": text} if preset == JSON else {"preset": preset}
        told, facts["plot"] = judged_again(Read(found), plan_of(found, policy_in(asked, found.model)))
    except DomainError as error:
        facts["error"] = error
    else:
        facts["replayed"] = beside_what_happened(found, told)
    return render(request, "rollouts/replay.html", facts)
