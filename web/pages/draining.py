"""Emptying a node or one server of it: a page that says what will happen to each, and the form that does it."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from accounts.api.requests import actor_of
from accounts.core.access import EVERY_TEAM, Verb, require
from ledger.core.errors import DomainError
from serving.actions.draining import drain_node, drain_one
from serving.core.draining import Fate
from serving.models import Deployment, Node
from serving.queries import get_node
from serving.queries.draining import DrainStep, deployment_on, deployments_on, digest_of_drain, drain_plan
from serving.queries.reporting import is_reporting
from web.pages.forms import NO_REASON, optional_reason_in, refused, version_in

_LOOKS: Final = {
    Fate.LEAVING: ("idle", "drain"),
    Fate.STOPS: ("ok", "drain"),
    Fate.MOVES: ("running", "play"),
    Fate.WAITS: ("waiting", "clock"),
    Fate.STAYS: ("bad", "alert"),
}


@login_required
def drain(request: HttpRequest, name: str) -> HttpResponse:
    """What draining would do, for administrators; `?deployment=5` for that one alone. Posted, it is done."""
    require(actor_of(request), Verb.ADMINISTER, EVERY_TEAM)
    node = get_node(name)
    one = _asked_for(request, node)
    if request.method != "POST":
        return _page(request, node, one)
    try:
        steps = _done(request, node, one)
    except DomainError as error:
        return refused(request, error, lambda: _page(request, get_node(name), one))
    held = sum(step.fate in (Fate.WAITS, Fate.STAYS, Fate.MOVES) for step in steps)
    more = f" {held} of {len(steps)} {'stays' if held == 1 else 'stay'} until it can go." if held else ""
    messages.success(request, f"{name} is being drained.{more}")
    return redirect("fleet")


def _asked_for(request: HttpRequest, node: Node) -> Deployment | None:
    given = (request.POST if request.method == "POST" else request.GET).get("deployment", "")
    return deployment_on(node, given) if given else None


def _done(request: HttpRequest, node: Node, one: Deployment | None) -> list[DrainStep]:
    actor, reason = actor_of(request), optional_reason_in(request) or NO_REASON
    is_confirmed = request.POST.get("confirmed") == "yes"
    read = request.POST.get("plan_digest", "") if is_confirmed else ""  # a plan that is named is confirmed
    if one is not None:
        return [drain_one(actor=actor, deployment=one, reason=reason, is_confirmed=is_confirmed, plan_digest=read)]
    return drain_node(
        actor=actor, node=node, reason=reason, is_confirmed=is_confirmed, plan_digest=read,
        expected_version=version_in(request),
    )  # fmt: skip


def _page(request: HttpRequest, node: Node, one: Deployment | None) -> HttpResponse:
    plan = drain_plan([one] if one is not None else deployments_on(node))
    steps = []
    for step in plan:
        look, icon = _LOOKS[step.fate]
        steps.append({"deployment": step.deployment, "fate": step.fate, "says": step.says, "look": look, "icon": icon})
    facts: dict[str, Any] = {
        "node": node,
        "one": one.pk if one is not None else None,
        "steps": steps,
        "plan_digest": digest_of_drain(plan),
        "touches_users": any(step.serves_users for step in plan),
        "is_silent": not is_reporting(node, timezone.now()),
    }
    return render(request, "serving/drain.html", facts)
