"""Which releases gate runs under way use, for the registry to ask before it retires one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from uuid import UUID

from validators.core.lifecycle import UNFINISHED
from validators.models import GateRun


def release_usages(releases: Collection[UUID] | None) -> Iterator[tuple[UUID, str]]:
    """As `registry.hooks.usage.Source`."""
    running = GateRun.objects.filter(state__in=[state.value for state in UNFINISHED]).order_by("pk")
    for pk, release, baseline in running.values_list("pk", "release_id", "baseline_id"):
        if releases is None or release in releases:
            yield release, f"its gates run (gate run {pk})"
        if baseline is not None and (releases is None or baseline in releases):
            yield baseline, f"gate run {pk} compares with it"
