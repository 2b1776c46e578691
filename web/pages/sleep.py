"""A model's sleep rules in each environment that serves it, its present state, and the forms that change them."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Actor, Verb, may
from ledger.core.errors import Invalid
from registry.models import ServedModel
from rollouts.queries.gateway_reads import read_routes
from serving.environments.core.sleep_lifecycle import SleepRule
from serving.models import Environment
from serving.targets.actions.sleeping import put_to_sleep, rule_sleep, wake_model
from serving.targets.core.sleep import LEAST_S, MOST_S
from serving.targets.queries import get_environment
from serving.targets.queries.sleep import sleep_views
from web.pages.forms import act, optional_reason_in, version_in
from web.pages.model_frame import frame, readable_model
from web.pages.unread import is_in_trouble


@login_required
def sleep(request: HttpRequest, slug: str) -> HttpResponse:
    served = readable_model(request, slug)
    routes = read_routes(served)
    facts = {
        "views": sleep_views(served, routes=routes),
        "no_green": is_in_trouble(served, routes),
        "may_rule": may(actor_of(request), Verb.SCALE_RELEASE, served.team.slug, slug),
        "least_s": LEAST_S,
        "most_s": MOST_S,
    }
    return render(request, "registry/model_sleep.html", {**frame(served, "model_sleep"), **facts})


@login_required
def rule(request: HttpRequest, slug: str) -> HttpResponse:
    def verb(actor: Actor, model: ServedModel, environment: Environment) -> None:
        said = SleepRule(
            _seconds_in(request, "unload_after_s"),
            _seconds_in(request, "yields_after_s"),
            request.POST.get("loads_on_demand") == "on",
        )
        rule_sleep(
            actor=actor,
            model=model,
            environment=environment,
            rule=said,
            reason=optional_reason_in(request),
            expected_version=version_in(request),
        )

    return _acted(request, slug, verb, "The rule is kept, and holds from now on.")


@login_required
def begin(request: HttpRequest, slug: str) -> HttpResponse:
    def verb(actor: Actor, model: ServedModel, environment: Environment) -> None:
        put_to_sleep(actor=actor, model=model, environment=environment, reason=optional_reason_in(request))

    return _acted(request, slug, verb, "Gateways answer for it now; then its servers are unloaded.")


@login_required
def end(request: HttpRequest, slug: str) -> HttpResponse:
    def verb(actor: Actor, model: ServedModel, environment: Environment) -> None:
        wake_model(actor=actor, model=model, environment=environment, reason=optional_reason_in(request))

    return _acted(request, slug, verb, "Its servers are being loaded.")


def _acted(
    request: HttpRequest, slug: str, verb: Callable[[Actor, ServedModel, Environment], None], done: str
) -> HttpResponse:
    served = readable_model(request, slug)
    return act(
        request,
        lambda: verb(actor_of(request), served, get_environment(request.POST.get("environment", ""))),
        done=done,
        then=reverse("model_sleep", args=[slug]),
        page=lambda: sleep(request, slug=slug),
    )


def _seconds_in(request: HttpRequest, name: str) -> int | None:
    given = request.POST.get(name, "").strip()
    if not given:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 9:
        raise Invalid("sleep_rule", f"“{given[:20]}” is no number of seconds; leave it empty for never.")
    return int(given)
