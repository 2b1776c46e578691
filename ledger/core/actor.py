"""Who acted, as far as the log must know: by name. What somebody may do is the accounts' business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Actor(Protocol):
    """Anything with a name, such as `accounts.core.access.Actor`."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class Process:
    """A part of Sluicegate itself as an actor. `name` reads `system:worker`."""

    name: str
