"""What memory each model holds on the nodes, and which of them sleep and hold none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from accounts.core.access import Actor
from registry.queries import visible_models
from serving.core.sleep_lifecycle import SleepState
from serving.models import Environment, Sleep
from serving.queries.fleet import NodeView, OnNode


@dataclass
class ModelMemory:
    """A model in an environment. `sleep`: what was said of it there and how it is, None where nothing was."""

    model: str
    environment: Environment
    sleep: Sleep | None = None
    held: list[OnNode] = field(default_factory=list)

    @property
    def state(self) -> str:
        return str(self.sleep.state if self.sleep is not None else SleepState.AWAKE)

    @property
    def quiet_since(self) -> datetime | None:
        """No request was counted since, as it was last written down; None where that is not known, or nobody looks."""
        return self.sleep.quiet_since if self.sleep is not None else None

    @property
    def declared_mib(self) -> int:
        return sum(one.declared_mib or 0 for one in self.held)

    @property
    def measured_mib(self) -> int | None:
        """What its servers hold, where all of them were measured: 0 where it has none."""
        sizes = [one.measured_mib for one in self.held]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def memory_of_models(actor: Actor, fleet: Iterable[NodeView]) -> list[ModelMemory]:
    """Of the models that the actor may read, those that hold most first, those that sleep last. One query, two to know which."""
    found: dict[tuple[int, str], ModelMemory] = {}
    for held in (one for node in fleet for one in node.held if one.model):
        where = held.deployment.environment
        found.setdefault((where.pk, held.model), ModelMemory(held.model, where)).held.append(held)
    for row in Sleep.objects.filter(model__in=visible_models(actor)).select_related("environment", "model"):
        at = (row.environment_id, row.model.slug)
        if row.state != SleepState.AWAKE or at in found:
            found.setdefault(at, ModelMemory(row.model.slug, row.environment)).sleep = row
    return sorted(found.values(), key=_biggest_first)


def _biggest_first(one: ModelMemory) -> tuple[bool, int, str, str]:
    size = one.declared_mib if one.measured_mib is None else one.measured_mib
    return one.state == SleepState.ASLEEP, -size, one.model, one.environment.slug
