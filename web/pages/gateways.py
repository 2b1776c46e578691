"""Gateways, on the page of their environment: registering one, taking users from it, and taking it off the list."""

from __future__ import annotations

import json
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import EVERY_TEAM, Verb, require
from ledger.core.errors import DomainError, Invalid
from serving.targets.queries import get_environment
from serving.traffic.actions.gateways import add_gateway, drain_gateway, remove_gateway, resume_gateway
from serving.traffic.core.gateway_setup import GatewaySetup
from serving.traffic.queries.gateways import get_gateway
from web.pages.environments import environment
from web.pages.forms import act, optional_reason_in, refused, version_in
from web.pages.settings_frame import render_settings

_DONE: Final = {
    "drain": "{} reports itself as not ready, and still answers.",
    "resume": "{} reports itself as ready.",
    "remove": "{} is on no list any more.",
}
#: Of the form that registers one: what its Envoy's configuration needs beside its name. All may be left out.
_SETUP: Final = ("control_planes", "admin", "counters", "relay", "certificate", "key", "authority")


@login_required
def register(request: HttpRequest, slug: str) -> HttpResponse:
    """Registers a gateway, and shows what its Envoy is started with. Sent again, it shows the same."""
    actor = actor_of(request)
    given = {name: request.POST.get(name, "").strip() for name in (*_SETUP, "name", "http_url", "grpc_address")}
    try:
        require(actor, Verb.ADMINISTER, EVERY_TEAM)
        setup = _setup(given)
        gateway, envoy = add_gateway(
            actor=actor,
            environment=get_environment(slug),
            setup=setup,
            http_url=given["http_url"],
            grpc_address=given["grpc_address"],
        )
    except DomainError as error:
        return refused(request, error, lambda: environment(request, slug))
    facts: dict[str, Any] = {"gateway": gateway, "envoy": json.dumps(envoy, indent=1), "setup": setup}
    return render_settings(request, "settings/gateway_added.html", "settings_environments", facts)


def _setup(given: dict[str, str]) -> GatewaySetup:
    told: dict[str, Any] = {name: given[name] for name in ("name", *_SETUP)}
    try:
        return GatewaySetup(**{**told, "control_planes": told["control_planes"] or settings.XDS_ADDRESS})
    except ValueError as error:
        raise Invalid("gateway_setup", str(error)) from None


@login_required
def act_on(request: HttpRequest, name: str, verb: str) -> HttpResponse:
    """Drains, resumes or removes the gateway of the page."""
    found = get_gateway(name)
    slug = found.environment.slug

    def call() -> None:
        said: Any = {"actor": actor_of(request), "gateway": found, "reason": optional_reason_in(request)}
        said["expected_version"] = version_in(request)
        if verb == "drain":
            drain_gateway(is_confirmed=True, **said)  # the dialog showed the effect
        elif verb == "resume":
            resume_gateway(**said)
        elif verb == "remove":
            remove_gateway(**said)
        else:
            raise Invalid("no_such_verb", f"A gateway has no verb “{verb}”.")

    return act(
        request, call, done=_DONE.get(verb, "{}").format(name), then=reverse("settings_environment", args=[slug]),
        page=lambda: environment(request, slug),
    )  # fmt: skip
