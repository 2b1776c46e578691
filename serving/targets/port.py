"""The port to the systems that run replicas: what an environment's owner may ask of one, whatever it is.

How a release stands is no question to this port. Each platform publishes its replicas as rows of `serving.models.Endpoint`, which
`serving.traffic.queries.endpoints` reads. No verb waits: a start is `pending`, for an hour if need be, until the platform publishes more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from accounts.core.access import Actor
from registry.models import Release
from serving.environments.core.endpoints import EndpointState
from serving.models import Environment
from serving.ports import InferenceServer
from serving.targets.core.gpu import GpuReading
from serving.targets.core.use import Reading

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
    the envelopes of what that keeps, by the name of each release. `replicas`: the environment could have so many now, of those asked for.
    """

    machine: Machine | None = None
    code: str = ""
    why: str = ""
    beside: tuple[Machine, Mapping[str, Mapping[str, Any]]] | None = None
    replicas: int = 1


@dataclass(frozen=True)
class ServerEnd:
    """How a server ended. `exit_code` is negative for a signal. Unknown: None, and an empty `reason`."""

    exit_code: int | None = None
    reason: str = ""


class TrialServer(Protocol):
    """One server that gates measure. Every method returns what the platform knows now, and None if it never knows."""

    @property
    def key(self) -> int:
        """Names the server in `GpuReading.processes`."""
        ...

    @property
    def started_at(self) -> datetime: ...

    def client(self) -> InferenceServer:
        """A new client, which the caller closes."""
        ...

    def readings(self, *, since_s: float, until_s: float) -> list[Reading] | None:
        """In their order, between two instants in seconds of the Unix epoch."""
        ...

    def last_reading(self) -> Reading | None: ...

    def gpus(self) -> GpuReading | None:
        """The last reading of the machine's GPUs."""
        ...

    def gpu_readings(self) -> list[GpuReading] | None:
        """The readings of the machine's GPUs since the server started, in their order."""
        ...

    def log(self) -> str | None: ...

    def end(self) -> ServerEnd | None:
        """None also while it runs."""
        ...


@dataclass(frozen=True)
class Trial:
    """The newest replica of a release in an environment as gates see it, also after its end.

    Functions read the present. `server`: the server that answers. `server_before`: the replica's newest server that had started by
    an instant, running or ended. `log_before`: text and time of the release's last log there, of all times for None. Facts of its
    start that the platform does not measure are left out.
    """

    replica: str
    state: EndpointState
    why: str
    is_wanted: bool
    machine: Machine
    server: Callable[[], TrialServer | None]
    server_before: Callable[[datetime], TrialServer | None]
    log_before: Callable[[datetime | None], tuple[str, datetime] | None] = lambda until: None
    timings: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)  # of the runtime
    recoveries: int | None = None


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

    def trial(self, release: Release, environment: Environment) -> Trial | None:
        """None if the release never had a replica there."""
        ...

    def forecast(self, release: Release, environment: Environment | None, *, replicas: int = 1) -> Forecast:
        """Where the release would run, and how many of so many replicas. Without an environment: wherever the platform would put it
        first."""
        ...

    def why_waiting(self, release: Release, environment: Environment) -> str:
        """Why replicas that are wanted do not come, as a sentence; empty if they are only on their way."""
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
