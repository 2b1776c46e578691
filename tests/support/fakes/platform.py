"""A platform that answers as Kubernetes does: a start is pending without an address, addresses change and are reused, a server may
restart in place."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import StateChanged
from registry.models import Release
from registry.queries import manifest_of
from serving.environments.actions.locks import notify_routes
from serving.environments.core.endpoints import EndpointState
from serving.models import Endpoint, Environment, Node, Route
from serving.ports import InferenceServer
from serving.targets.port import Forecast, Machine, Trial
from tests.support.fakes.ports import Compute, FakeInferenceServer, FakeModel

_pods = itertools.count(1)
NO_ROOM = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."


@dataclass(frozen=True)
class Container:
    """A TrialServer of which the cluster knows the address alone. It computes as `compute` does."""

    endpoint: Endpoint
    compute: Compute

    @property
    def key(self) -> int:
        return self.endpoint.pk

    @property
    def started_at(self) -> datetime:
        assert self.endpoint.since is not None
        return self.endpoint.since

    def client(self) -> InferenceServer:
        serving = manifest_of(self.endpoint.release)["serving"]
        return FakeInferenceServer({self.endpoint.release.model.slug: FakeModel(serving, self.compute)})

    def readings(self, *, since_s: float, until_s: float) -> None: ...

    def last_reading(self) -> None: ...

    def gpus(self) -> None: ...

    def gpu_readings(self) -> None: ...

    def log(self) -> None: ...

    def end(self) -> None: ...


class FakeKubernetes:
    """Its servers compute as `compute` does. Its cluster does nothing by itself: `schedule`, `moves_to`, `restart` and `die` are what
    a kubelet would report."""

    def __init__(self, compute: Compute = dict) -> None:
        self.compute = compute

    def start(self, release: Release, environment: Environment, *, actor: Actor, reason: str) -> None:
        if not self._staying(release, environment):
            self._pod(release, environment)

    def stop(self, release: Release, environment: Environment, *, actor: Actor, reason: str) -> None:
        if Route.objects.filter(environment=environment, stable=release).exists():
            raise StateChanged("still_routed", f"{release.name} is stable in {environment.slug}.")
        self._end(self._staying(release, environment))

    def scale(self, release: Release, environment: Environment, replicas: int, *, actor: Actor, reason: str) -> None:
        staying = self._staying(release, environment)
        if not staying:
            raise StateChanged("not_deployed", f"{release.name} has no replica in {environment.slug}.")
        for _ in range(replicas - len(staying)):
            self._pod(release, environment)

    def replace(self, replica: str, *, actor: Actor, reason: str, set_aside: bool = False) -> None:
        old = self._there(replica)
        if set_aside:
            self.set_aside(replica, actor=actor, reason=reason)
        if not Endpoint.objects.filter(replica__startswith=f"{replica}+").exists():
            self._pod(old.release, old.environment, f"{replica}+{next(_pods)}")

    def set_aside(self, replica: str, *, actor: Actor, reason: str) -> None:
        one = self._there(replica)
        others = Endpoint.objects.filter(release=one.release, environment=one.environment, is_serving=True)
        if not others.filter(is_leaving=False).exclude(pk=one.pk).exists():
            raise StateChanged("last_replica", f"{replica} is the last that answers.")
        Endpoint.objects.filter(pk=one.pk).update(is_set_aside=True, is_serving=False)
        notify_routes()

    def trial(self, release: Release, environment: Environment) -> Trial | None:
        rows = Endpoint.objects.filter(release=release, environment=environment).order_by("-pk")
        one = rows.exclude(state=EndpointState.GONE).first() or rows.first()
        if one is None:
            return None
        server = Container(one, self.compute) if one.is_serving else None
        return Trial(
            one.replica, EndpointState(one.state), one.why, not one.is_leaving, Machine("cluster"),
            server=lambda: server, server_before=lambda until: server if server and server.started_at <= until else None,
        )  # fmt: skip

    def forecast(self, release: Release, environment: Environment | None, *, replicas: int = 1) -> Forecast:
        return Forecast(Machine("cluster"), beside=(Machine("cluster"), {}), replicas=replicas)

    def why_waiting(self, release: Release, environment: Environment) -> str:
        pending = self._rows(release, environment).filter(state=EndpointState.PENDING).first()
        return pending.why if pending else ""

    def plan_clearing(self, environment: Environment, *, is_deleted: bool) -> list[str]:
        return []

    def hold(self, environment: Environment, *starting: Release) -> set[Release]:
        return {one.release for one in Endpoint.objects.filter(environment=environment)}

    def clear(self, environment: Environment, *, actor: Actor, reason: str, is_deleted: bool) -> None:
        self._end(list(Endpoint.objects.filter(environment=environment)))

    # what the cluster reports

    def schedule(self, replica: str, host: str, port: int) -> None:
        """The pod runs at this address and answers. Whoever served there before is gone from it."""
        Endpoint.objects.filter(is_serving=True, host=host, http_port=port).update(is_serving=False)
        at: dict[str, Any] = {"host": host, "http_port": port, "grpc_port": port + 1, "since": timezone.now()}
        Endpoint.objects.filter(replica=replica).update(
            state=EndpointState.READY, why="", is_serving=True, was_well=True, **at
        )
        notify_routes()

    moves_to = schedule

    def restart(self, replica: str) -> None:
        """The kubelet restarted the container in place: the same address, another server."""
        one = Endpoint.objects.get(replica=replica)
        self.schedule(replica, str(one.host), one.http_port or 0)

    def _pod(self, release: Release, environment: Environment, name: str = "") -> Endpoint:
        pool, _ = Node.objects.get_or_create(name="cluster", defaults={"seen_at": timezone.now()})
        name = name or f"{environment.slug}/pod-{next(_pods)}"
        return Endpoint.objects.create(
            release=release, environment=environment, replica=name, node=pool, state=EndpointState.PENDING, why=NO_ROOM
        )

    def _rows(self, release: Release, environment: Environment) -> Any:
        return Endpoint.objects.filter(release=release, environment=environment).exclude(state=EndpointState.GONE)

    def _staying(self, release: Release, environment: Environment) -> list[Endpoint]:
        return list(self._rows(release, environment).filter(is_leaving=False).order_by("pk"))

    def _there(self, replica: str) -> Endpoint:
        found = Endpoint.objects.filter(replica=replica, is_leaving=False).exclude(state=EndpointState.GONE).first()
        if found is None:
            raise StateChanged("replica_leaving", f"{replica} leaves already.")
        return found

    def _end(self, rows: list[Endpoint]) -> None:
        Endpoint.objects.filter(pk__in=[one.pk for one in rows]).update(
            state=EndpointState.GONE, is_leaving=True, is_serving=False, host=None, http_port=None, grpc_port=None
        )
        notify_routes()
