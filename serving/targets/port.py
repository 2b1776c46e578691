"""The port to the systems that run replicas: what an environment's owner may ask of one, whatever it is.

How a release stands is no question to this port. Each platform publishes its replicas as rows of `serving.models.Endpoint`, which
`serving.queries.endpoints` reads. No verb waits: a start is `pending`, for an hour if need be, until the platform publishes more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from accounts.core.access import Actor
from registry.models import Release
from serving.models import Environment

#: Codes of the errors (`ledger.core.errors.DomainError`) that verbs of a platform raise beside those of the actor's rights and of the
#: release's own state. An error leaves nothing behind.
REASONS = frozenset(
    {
        "deployment_draining", "environment_retired", "fits_nowhere", "last_replica", "model_asleep", "no_node_for_runtime", "no_room",
        "no_such_environment", "not_contained", "not_deployed", "not_scaled", "plan_loads_nowhere", "reason_too_long",
        "replica_leaving", "replicas_out_of_range", "still_routed",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """Hardware under replicas, with the facts that its reporter states. A fact that is absent is unknown."""

    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Forecast:
    """Where a release would run.

    `machine` runs it, or would run its next replica; None if no machine would. `code` and `why` name what stands against one more
    replica on the machines that report now: `does_not_fit` or `no_node`, and a sentence. `beside`: the machine that would take it, and
    the envelopes of what that keeps, by the name of each release.
    """

    machine: Machine | None = None
    code: str = ""
    why: str = ""
    beside: tuple[Machine, Mapping[str, Mapping[str, Any]]] | None = None


class Platform(Protocol):
    """Runs replicas of releases for environments. Every verb is idempotent, and raises Refused if the actor may not."""

    def start(self, release: Release, environment: Environment, *, actor: Actor, reason: str) -> None:
        """Asks for a replica if the release has none, and again if its last one failed."""
        ...

    def stop(self, release: Release, environment: Environment, *, actor: Actor, reason: str) -> None:
        """Drains every replica. Raises StateChanged("still_routed") while gateways send the release traffic, or hold it as stable."""
        ...

    def scale(self, release: Release, environment: Environment, replicas: int, *, actor: Actor, reason: str) -> None:
        """So many replicas are wanted from now on. Raises Invalid, and StateChanged: the release has none."""
        ...

    def replace(self, replica: str, *, actor: Actor, reason: str, set_aside: bool = False) -> None:
        """Another replica takes the place of this one, which answers until then; if `set_aside`, it gets no more traffic from now on.

        Raises StateChanged: it leaves already, or is the last that answers and is to be set aside. Raises Unavailable: there is no place
        for another, and it is not set aside.
        """
        ...

    def set_aside(self, replica: str, *, actor: Actor, reason: str) -> None:
        """The replica gets no more traffic; the platform replaces it when it can. Raises StateChanged as `replace`."""
        ...

    def forecast(self, release: Release, environment: Environment | None) -> Forecast:
        """Where the release would run. Without an environment: wherever the platform would put it first."""
        ...

    def why_waiting(self, release: Release, environment: Environment) -> str:
        """Why replicas that are wanted do not come, as a sentence; empty if they are only on their way."""
        ...

    def most_that_fit(self, release: Release, environment: Environment, most: int) -> int:
        """How many replicas the environment could have now, up to `most`, with those that it has."""
        ...

    def plan_clearing(self, environment: Environment, *, is_deleted: bool) -> list[str]:
        """Sentences: what `clear` would end and remove."""
        ...

    def clear(self, environment: Environment, *, actor: Actor, reason: str, is_deleted: bool) -> None:
        """Drains all that runs there, users or not; if the environment `is_deleted`, its machines leave it too. For a transaction that
        holds the environment."""
        ...

    def hold(self, environment: Environment, *starting: Release) -> set[Release]:
        """Locks the replicas there, and what `starting` will take, before the first event. Returns the releases that have replicas."""
        ...
