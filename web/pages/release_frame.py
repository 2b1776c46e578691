"""What every tab of a release's page begins with: the release, the tabs, and what became of it with traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from accounts.core.access import Actor, Verb, may
from registry.hooks.outcomes import RolledBack
from registry.models import Release
from registry.queries import find_release, get_release, visible_model
from rollouts.queries.gateway_reads import read_routes
from rollouts.queries.rolled_back import rolled_back_before
from serving.models import Route
from web.pages.unread import is_in_trouble

#: (label, name of the page), in the order in which they stand.
TABS = (
    ("Summary", "release"),
    ("Files", "release_files"),
    ("Gates", "release_gates"),
    ("Replicas", "release_replicas"),
    ("Provenance", "release_provenance"),
)


@dataclass(frozen=True)
class Outcome:
    """The release's history with traffic: as stable, as a candidate, and reasons of rollbacks."""

    stable_in: tuple[str, ...]
    candidate_in: tuple[str, ...]
    rolled_back: tuple[RolledBack, ...]

    @property
    def serves(self) -> tuple[str, ...]:
        """The environments in which it serves all users, or all but a candidate's share."""
        return self.stable_in


def readable_release(actor: Actor, slug: str, number: int) -> Release:
    """The release with its author, or NotFound in the same words for a person who may not read its model."""
    found = find_release(slug, number)
    if found is None or not may(actor, Verb.READ, found.model.team.slug, slug):
        visible_model(actor, slug)  # refuse an invisible model first
        return get_release(slug, number)
    return found


def routes_of(release: Release) -> list[Route]:
    """The routes of the release's model, by environment."""
    return sorted(read_routes(release.model), key=lambda route: route.environment.slug)


def outcome_of(release: Release, routes: list[Route]) -> Outcome:
    return Outcome(
        tuple(route.environment.slug for route in routes if route.stable_id == release.pk),
        tuple(route.environment.slug for route in routes if route.candidate_id == release.pk),
        tuple(rolled_back_before(release)),
    )


def frame(release: Release, current: str) -> dict[str, Any]:
    """The facts that `registry/release_frame.html` needs; `current` is the name of the tab's page."""
    arguments = [release.model.slug, release.number]
    tabs = [(label, reverse(name, args=arguments), name == current, None) for label, name in TABS]
    routes = routes_of(release)
    outcome = outcome_of(release, routes)
    no_green = bool(outcome.stable_in) and is_in_trouble(release.model, routes)
    return {"release": release, "tabs": tabs, "routes": routes, "outcome": outcome, "no_green": no_green}
