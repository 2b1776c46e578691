"""Which releases rollouts use: asked before servers are let go, and by the registry before it retires one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from registry.models import Release
from rollouts.core.lifecycle import ACTIVE, RolloutState
from rollouts.models import Rollout
from rollouts.queries.undo_window import aborted_take_overs
from serving.models import Environment
from serving.traffic.queries.routes import is_routed


def is_in_use(release: Release, environment: Environment) -> bool:
    """Whether the release serves there, is about to, or is what an active rollout or an aborted take-over would go back to."""
    arms = Q(candidate=release) | Q(stable=release) | Q(displaced=release)
    active = Q(state__in=sorted(state.value for state in ACTIVE)) & arms
    aborted = Q(pk__in=aborted_take_overs().filter(displaced=release).values("pk"))
    wanted = Rollout.objects.filter(active | aborted, environment=environment)
    return wanted.exists() or is_routed(release, environment)


def release_usages(releases: Collection[UUID] | None) -> Iterator[tuple[UUID, str]]:
    """As `registry.hooks.usage.Source`."""
    return ((release, what) for release, _, what in release_needs(releases))


def release_needs(releases: Collection[UUID] | None) -> Iterator[tuple[UUID, int, str]]:
    """As `serving.targets.hooks.needs.NeedSource`: both arms of live rollouts, and the release before while
    one step goes back to it."""
    live = Q(state__in=sorted(state.value for state in ACTIVE))
    warm = Q(state=RolloutState.PROMOTED, undo_until__gt=timezone.now())
    aborted = Q(pk__in=aborted_take_overs().values("pk"))
    rows = Rollout.objects.filter(live | warm | aborted).order_by("pk")
    columns = ("pk", "candidate_id", "stable_id", "displaced_id", "state", "environment_id", "environment__slug")
    for pk, candidate, stable, displaced, state, where, environment in rows.values_list(*columns):
        if state == RolloutState.PROMOTED:
            if stable is not None and (releases is None or stable in releases):
                yield stable, where, f"kept warm in {environment} to go back to at once (rollout {pk})"
            continue
        if state != RolloutState.ROLLED_BACK and (releases is None or candidate in releases):
            yield candidate, where, f"candidate of rollout {pk} in {environment} ({state})"
        stable = stable or displaced
        if stable is not None and (releases is None or stable in releases):
            yield stable, where, f"rollout {pk} in {environment} would go back to it ({state})"


def awaited_candidates() -> Iterator[tuple[UUID, int]]:
    """Candidates in preparation, by age of their rollout; a `serving.targets.hooks.needs.AwaitedSource`."""
    rows = Rollout.objects.filter(state=RolloutState.PREPARING).order_by("pk")
    yield from rows.values_list("candidate_id", "environment_id")
