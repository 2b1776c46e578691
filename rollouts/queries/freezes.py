"""Which models are frozen now, and when they will be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ledger.core.errors import DomainError
from registry.models import ServedModel
from rollouts.core.freeze import Stretch, stretches
from rollouts.core.policy_schema import stored_policy


@dataclass(frozen=True)
class ModelFreezes:
    """A model's freezes within the interval, by its own policy; a rollout may follow another policy."""

    model: str
    stretches: tuple[Stretch, ...]
    frozen_until: datetime | None


def freezes(models: Iterable[ServedModel], begin: datetime, *, days: int) -> list[ModelFreezes]:
    """Of those of the models that have any. A policy that cannot be read any more has none."""
    found = []
    for model in models:
        if not (model.rollout_policy or {}).get("freeze_windows"):
            continue
        try:
            windows = stored_policy(model.rollout_policy, model.objectives).freeze_windows
        except DomainError:
            continue
        ahead = stretches(windows, begin, begin + timedelta(days=days))
        now = ahead[0].ends_at if ahead and ahead[0].begins_at <= begin else None
        found.append(ModelFreezes(model.slug, ahead, now))
    return found
