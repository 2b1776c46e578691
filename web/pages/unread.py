"""Environments whose gateways the engine cannot read: no page shows an unknown effect on users as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils import timezone

from registry.models import ServedModel
from rollouts.queries.gateway_reads import is_engine_up, is_read
from rollouts.queries.places import served_places
from rollouts.queries.traffic import Lately
from serving.models import Route


@dataclass(frozen=True)
class Unread:
    """`since`: when all gateways there were last read. `why`: a sentence without its full stop."""

    since: datetime
    title: str
    why: str
    next_step: str


def unread_environments(lately: Mapping[tuple[int, int], Lately], now: datetime) -> dict[int, Unread]:
    """By the environment's key, of what `lately_of` returned. An environment that was never counted is not among them."""
    return {
        environment: _unread(found.read_at, is_up=is_engine_up(found.written_at, now))
        for (environment, _), found in lately.items()
        if found.read_at is not None and not is_read(found.read_at, found.written_at, now)
    }


def is_in_trouble(served: ServedModel, routes: Sequence[Route]) -> bool:
    """Whether the model, by its `read_routes`, is anywhere without proof that its servers answer, or behind unread gateways."""
    now, places = timezone.now(), served_places(served, routes)
    unread = {
        route.pk
        for route in routes
        if route.read_at and not is_read(route.read_at, route.written_at, now)  # type: ignore[attr-defined]
    }
    return any(place.is_doubted or (place.is_awake and pk in unread) for pk, place in places.items())


def _unread(since: datetime, *, is_up: bool) -> Unread:
    at = f"{since.astimezone(UTC):%H:%M:%S} UTC"
    if is_up:
        return Unread(
            since,
            "a gateway does not answer",
            f"The engine could not read all gateways since {at}",
            "Look at their processes. If one was stopped for good, remove it on its environment's page.",
        )
    return Unread(
        since,
        "no gateway is read",
        f"The engine wrote nothing that the gateways counted since {at}",
        "Look at the engine's process.",
    )
