"""Settings, Environments: the rules for entering each, its gateways, and when models are frozen."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone

from accounts.api.requests import actor_of
from registry.queries import visible_models
from rollouts.actions.retiring import Removal, remove_environment, restore_environment
from rollouts.queries.freezes import freezes
from serving.environments.actions.environments import change_environment, create_environment
from serving.environments.core.platforms import PlatformKind
from serving.models import Environment
from serving.targets import queries
from serving.targets.queries.static_servers import servers_of
from serving.traffic.core.gateway_standing import Standing
from serving.traffic.queries.forced_key import shown_forced_key
from serving.traffic.queries.gateways import GatewayState, gateway_states
from serving.traffic.queries.routes import models_routed_in
from web.pages.forms import optional_reason_in, version_in
from web.pages.settings_frame import act_confirmed, render_settings

DAYS_AHEAD = 14
_GATEWAY_VERBS = {
    "drain": "The gateway reports itself as not ready, so that load balancers send users elsewhere. It still answers. "
    "Without another gateway users may lose service.",
    "resume": "The gateway reports itself as ready, so that load balancers send it users.",
    "remove": "The gateway leaves all lists. No control plane talks to a gateway of this name until you register it again.",
}
_FLAGS = ("needs_passed_report", "needs_approval", "allows_forced_release")


@login_required
def environments(request: HttpRequest) -> HttpResponse:
    now, models = timezone.now(), visible_models(actor_of(request))
    every = queries.all_environments(with_retired=True)
    retired = [one for one in every if one.retired_at is not None]
    is_all = request.GET.get("retired") == "yes"
    facts = {
        "rows": every if is_all else [one for one in every if one.retired_at is None],
        "retired": len(retired),
        "is_all": is_all,
        "gateways": gateway_states(),
        "freezes": freezes(models, now, days=DAYS_AHEAD),
        "days": DAYS_AHEAD,
        "row": {"title": "", "needs_passed_report": True, "needs_approval": True, "allows_forced_release": False},
        "form": request.POST,
    }
    return render_settings(request, "settings/environments.html", "settings_environments", facts)


@login_required
def environment(request: HttpRequest, slug: str) -> HttpResponse:
    """One environment with its form."""
    row = queries.get_environment(slug)
    facts = {
        "row": row,
        "routed": models_routed_in(row.pk, visible_models(actor_of(request))),
        "gateways": [
            {**vars(one), "verbs": _verbs(one)} for one in gateway_states() if one.gateway.environment_id == row.pk
        ],
        "form": request.POST,
        "forced_key": shown_forced_key(actor_of(request), row),
        "servers": servers_of(actor_of(request), row) if row.platform == PlatformKind.STATIC else [],
    }
    return render_settings(request, "settings/environment.html", "settings_environments", facts)


def _verbs(state: GatewayState) -> list[dict[str, Any]]:
    """Verbs of the gateway at present, with their effects."""
    verbs = ["resume" if state.gateway.drained_at else "drain"]
    if state.standing in (Standing.SILENT, Standing.NEVER_SEEN):
        verbs.append("remove")
    return [
        {"name": one, "label": one.title(), "says": _GATEWAY_VERBS[one], "is_danger": one != "resume"} for one in verbs
    ]


@login_required
def create(request: HttpRequest) -> HttpResponse:
    made: list[Environment] = []
    given = request.POST

    def verb() -> None:
        values = _values(request)
        if not values["title"]:
            del values["title"]  # its name will do
        is_routed = given.get("is_routed") == "on"
        slug = given.get("slug", "").strip()
        made[:] = [create_environment(actor=actor_of(request), slug=slug, is_routed=is_routed, **values)]

    return act_confirmed(
        request, verb, title="Make this environment", says=lambda: _says(made[0]), done="The environment is there.",
        then=lambda: reverse("settings_environment", args=[made[0].slug]), page=lambda: environments(request),
    )  # fmt: skip


@login_required
def change(request: HttpRequest, slug: str) -> HttpResponse:
    actor = actor_of(request)
    row = queries.get_environment(slug)
    changed: list[Environment] = []

    def verb() -> None:
        changed[:] = [
            change_environment(
                actor=actor, environment=row, expected_version=version_in(request), changes=_values(request)
            )
        ]

    return act_confirmed(
        request, verb, title="Change the rules", says=lambda: _says(changed[0]), done="The rules are changed.",
        then=lambda: reverse("settings_environment", args=[slug]), page=lambda: environment(request, slug),
    )  # fmt: skip


@login_required
def remove(request: HttpRequest, slug: str) -> HttpResponse:
    """Deletes or retires it, once the person has read what goes with it."""
    row = queries.get_environment(slug)
    removed: list[Removal] = []

    def verb() -> None:
        said: Any = {"actor": actor_of(request), "environment": row, "reason": optional_reason_in(request)}
        removed[:] = [remove_environment(is_confirmed=True, expected_version=version_in(request), **said)]

    return act_confirmed(
        request, verb, title=f"Remove {row.title}", says=lambda: list(removed[0].says),
        done=f"{row.title} is taken out of use.", then=lambda: reverse("settings_environments"),
        page=lambda: environment(request, slug), asks_anew=True,
    )  # fmt: skip


@login_required
def restore(request: HttpRequest, slug: str) -> HttpResponse:
    row = queries.get_environment(slug)

    def verb() -> None:
        said: Any = {"actor": actor_of(request), "environment": row, "reason": optional_reason_in(request)}
        restore_environment(expected_version=version_in(request), **said)

    return act_confirmed(
        request, verb, title=f"Bring {row.title} back", says=lambda: _says_restored(row),
        done=f"{row.title} is in use again.", then=lambda: reverse("settings_environment", args=[slug]),
        page=lambda: environment(request, slug),
    )  # fmt: skip


def _says_restored(row: Environment) -> list[str]:
    servers = "A server is asked for of each release that was stable there."
    gateways = "Its gateways are to be registered anew."
    return [f"{row.slug} can be deployed to and rolled out to again.", *([servers, gateways] if row.is_routed else [])]


def _values(request: HttpRequest) -> dict[str, Any]:
    given = request.POST
    return {"title": given.get("title", "").strip(), **{name: given.get(name) == "on" for name in _FLAGS}}


def _says(row: Environment) -> list[str]:
    """What holds from now on."""
    gateway = "gateways route its traffic" if row.is_routed else "no gateway: gates talk to its servers directly"
    report = "only with a passed report" if row.needs_passed_report else "without a passed report, too"
    approval = (
        "waits for an approval at its start" if row.needs_approval else "waits for the approvals of its policy alone"
    )
    forced = (
        "that shows the environment's key may choose its release by x-sluicegate-release"
        if row.allows_forced_release
        else "cannot choose its release"
    )
    return [
        f"{row.title} ({row.slug}): {gateway}.",
        f"A rollout starts here {report}, and {approval}.",
        f"A caller's request {forced}.",
        "Running rollouts keep their rules.",
    ]
