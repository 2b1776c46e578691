"""Saying how many replicas of a release an environment is to have, and replacing one, by forms of the release's replicas."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from accounts.api.requests import actor_of
from ledger.core.errors import Invalid
from serving.environments.core.replicas import MOST_REPLICAS
from serving.targets.actions.replacing import replace_replica
from serving.targets.actions.replicas import scale_release
from serving.targets.queries import get_environment
from serving.targets.queries.replicas import replica_of
from web.pages.forms import act, optional_reason_in, version_in
from web.pages.release_frame import readable_release
from web.pages.release_tabs import replicas


@login_required
def scale(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    actor = actor_of(request)
    release = readable_release(actor, slug, number)

    def verb() -> None:
        environment = get_environment(request.POST.get("environment", ""))
        scale_release(
            actor=actor,
            release=release,
            environment=environment,
            replicas=_replicas_in(request),
            reason=optional_reason_in(request),
            expected_version=version_in(request),
        )

    return act(
        request,
        verb,
        done="The nodes' agents bring them about.",
        then=reverse("release_replicas", args=[slug, number]),
        page=lambda: replicas(request, slug=slug, number=number),
    )


@login_required
def replace(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Another in the place of one replica."""
    actor = actor_of(request)
    release = readable_release(actor, slug, number)

    def verb() -> None:
        given = request.POST.get("replica", "")
        key = int(given) if given.isascii() and given.isdigit() and len(given) <= 18 else 0
        is_aside = request.POST.get("set_aside") == "on"
        replace_replica(
            actor=actor, replica=replica_of(release, key), reason=optional_reason_in(request), set_aside=is_aside
        )

    return act(
        request,
        verb,
        done="A new replica starts. The present replica stops when enough others answer.",
        then=reverse("release_replicas", args=[slug, number]),
        page=lambda: replicas(request, slug=slug, number=number),
    )


def _replicas_in(request: HttpRequest) -> int:
    given = request.POST.get("replicas", "").strip()
    if not given.isascii() or not given.isdigit() or len(given) > 6:
        raise Invalid(
            "replicas_out_of_range",
            f"“{given[:20]}” is no number of replicas; enter a number from 1 to {MOST_REPLICAS}.",
            least=1,
            most=MOST_REPLICAS,
        )
    return int(given)
