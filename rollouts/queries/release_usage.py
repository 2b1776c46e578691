"""Which releases rollouts use, for the registry to ask before it retires one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from rollouts.core.lifecycle import ACTIVE, RolloutState
from rollouts.models import Rollout


def release_usages(releases: Collection[UUID] | None) -> Iterator[tuple[UUID, str]]:
    """As `registry.hooks.usage.Source`: both arms of live rollouts, and the release before while it can be gone back to at once."""
    live = Q(state__in=sorted(state.value for state in ACTIVE))
    warm = Q(state=RolloutState.PROMOTED, undo_until__gt=timezone.now())
    rows = Rollout.objects.filter(live | warm).order_by("pk")
    columns = ("pk", "candidate_id", "stable_id", "state", "environment__slug")
    for pk, candidate, stable, state, environment in rows.values_list(*columns):
        if state == RolloutState.PROMOTED:
            if stable is not None and (releases is None or stable in releases):
                yield stable, f"kept warm in {environment} to go back to at once (rollout {pk})"
            continue
        if releases is None or candidate in releases:
            yield candidate, f"candidate of rollout {pk} in {environment} ({state})"
        if stable is not None and (releases is None or stable in releases):
            yield stable, f"rollout {pk} in {environment} would go back to it ({state})"
