"""Models that may sleep in production, behind a gateway that counts and is not there, on a clock that tests move on."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor
from ledger.actions.leadership import Leadership
from ledger.queries.clock import DatabaseClock
from registry.models import Release, ServedModel
from serving.environments.core.sleep_lifecycle import SleepRule
from serving.models import Gateway, Node, Replica, Route, Server, Sleep
from serving.ports import GatewayError
from serving.targets.actions import ensure_replica
from serving.targets.actions.replicas import scale_release
from serving.targets.actions.sleeping import rule_sleep
from serving.targets.agent.sleep_watch import SleepWatch
from serving.targets.core.sleep import LEAST_S
from serving.traffic.actions.gateways import register_gateway
from tests.support.fakes.gateway import FakeGateway, UserAnswer
from tests.support.worlds.factories import make_actor, make_server, resealed
from tests.support.worlds.rollout_setup import OBJECTIVES, production, release_of, stable_server, started

SYSTEM = Actor.system("test")


class OnEvery(dict[tuple[str, str], int]):
    """So many on the servers of every release."""

    def __init__(self, active: int) -> None:
        super().__init__()
        self.active = active

    def get(self, release: object, default: object = None) -> int:  # type: ignore[override]
        return self.active


class Hosts:
    """InFlightCounters: `active` is in flight on the servers of every release. `asked`: the gateways, in turn."""

    def __init__(self) -> None:
        self.active = 0
        self.fails = False
        self.asked: list[str] = []

    def read_in_flight(self, *, gateway: str, admin_url: str, timeout_s: float) -> dict[tuple[str, str], int]:
        self.asked.append(gateway)
        if self.fails:
            raise GatewayError("timeout", f"{gateway} did not answer in time")
        return OnEvery(self.active)


class Leads(Leadership):
    """Leads for as long as `is_leading`."""

    def __init__(self) -> None:
        super().__init__("sleep_watch", "test", 60.0)
        self.is_leading = True

    def take(self) -> bool:
        return self.is_leading


class Clock(DatabaseClock):
    """Goes by `read`."""

    def __init__(self, read: Callable[[], datetime]) -> None:
        super().__init__()
        self.now = self.sync = read  # type: ignore[method-assign]


class Night:
    """Each test calls `watch`. `is_fresh`: every look has a new `watch`, as after a kill of the agent."""

    def __init__(self, *, is_fresh: bool = False) -> None:
        self.now = timezone.now()
        self.one = stable_server()
        self.model, self.environment = self.one.release.model, self.one.environment
        register_gateway(
            actor=SYSTEM, environment=production(), name="gateway-1", admin_url="http://127.0.0.1:9901",
            http_url="http://127.0.0.1:8000", grpc_address="127.0.0.1:8000",
        )  # fmt: skip
        self.gateway = FakeGateway("gateway-1", now=lambda: self.now)
        self.gateway.obey()
        self.hosts, self.is_fresh = Hosts(), is_fresh
        self.lead, self.clock = Leads(), Clock(lambda: self.now)
        self.watch = self.fresh()

    def fresh(self) -> SleepWatch:
        return SleepWatch(self.gateway, self.hosts, self.lead, self.clock)

    def rule(self, of: Replica | None = None, **over: Any) -> Sleep:
        rule = SleepRule(**{"unload_after_s": LEAST_S, **over})
        model = (of or self.one).release.model
        return rule_sleep(actor=SYSTEM, model=model, environment=self.environment, rule=rule)

    def later(self, seconds: float = 2.0) -> None:
        """The watch looks, so much later."""
        self.now += timedelta(seconds=seconds)
        if self.is_fresh:
            self.watch = self.fresh()
        self.watch.turn()

    def idle(self, seconds: float = LEAST_S) -> None:
        """Nobody asks for so long."""
        self.later()
        self.later(seconds)

    def asked(self, times: int = 1, of: Replica | None = None) -> list[UserAnswer]:
        return self.gateway.traffic(times, (of or self.one).release.model.slug)

    def ends(self) -> None:
        """One that a server answers still ends, and is counted."""
        self.gateway.count(self.model.slug, str(self.one.release.digest), attempts=1)

    def sleep(self, of: Replica | None = None) -> Sleep:
        return Sleep.objects.get(model=(of or self.one).release.model)

    def state(self, of: Replica | None = None) -> str:
        return self.sleep(of).state

    def replicas(self, of: Replica | None = None) -> list[Replica]:
        """Those that are wanted."""
        rows = Replica.objects.filter(release=(of or self.one).release, is_wanted=True).exclude(state="gone")
        return list(rows.order_by("pk"))


class Crowd(Night):
    """A node of 100 MiB, and on it two models of 40, which may yield. Another model's candidate of 40 is to be placed there."""

    def __init__(self) -> None:
        super().__init__()
        Node.objects.update(facts={"memory_bytes": 100 * 2**20})
        self.two = stable_server()
        for one in (self.one, self.two):
            self.declare(one.release)
            Replica.objects.filter(pk=one.pk).update(claim={"memory_mib": 40})
            one.release.refresh_from_db()
            self.rule(one, unload_after_s=None, yields_after_s=LEAST_S)
        self.gateway.obey()
        self.rollout = started(candidate=self.declare(release_of()))
        self.later()

    @staticmethod
    def declare(release: Release) -> Release:
        return resealed(release, envelope={"host": {"memory_mib_min": 40}})

    def ask_for_candidate(self) -> Replica:
        return ensure_replica(
            actor=SYSTEM, release=self.rollout.candidate, environment=self.environment, reason="It is prepared."
        )

    def states(self) -> tuple[str, str]:
        return self.state(self.one), self.state(self.two)


def add_gateway(night: Night, name: str) -> Gateway:
    """One more of its environment; it counts as the first one does."""
    return register_gateway(
        actor=SYSTEM, environment=night.environment, name=name, admin_url="http://127.0.0.1:9902",
        http_url="http://127.0.0.1:8001", grpc_address="127.0.0.1:8001",
    )  # fmt: skip


def many(night: Night, times: int, **rule: int) -> list[Replica]:
    """So many more models with a server each, and what was said of all of them."""
    models = ServedModel.objects.bulk_create(
        ServedModel(slug=f"quiet-{n}-{times}", team=night.model.team, objectives=OBJECTIVES, last_number=1)
        for n in range(times)
    )
    releases = Release.objects.bulk_create(
        Release(
            id=uuid.uuid4(), model=one, number=1, state="sealed", sealed_at=timezone.now(), manifest=night.one.release.manifest,
            digest=f"sha256:{n:012x}{times:052x}",
        )
        for n, one in enumerate(models)
    )  # fmt: skip
    Route.objects.bulk_create(
        Route(environment=night.environment, model=one.model, stable=one, changed_at=timezone.now()) for one in releases
    )
    made = Replica.objects.bulk_create(
        Replica(release=one, environment=night.environment, node=night.one.node, state="ready") for one in releases
    )
    ports = {"http_port": 1, "grpc_port": 2, "metrics_port": 3, "pid": 4, "folder": "nowhere"}
    Server.objects.bulk_create(Server(replica=one, is_serving=True, **ports) for one in made)
    Sleep.objects.bulk_create(
        Sleep(environment=night.environment, model=one, changed_at=timezone.now(), **rule) for one in models
    )
    return made


@pytest.fixture
def night() -> Night:
    made = Night()
    made.rule()
    return made


def unloaded(night: Night) -> Night:
    """It sleeps, and its servers are to go; no agent has ended them yet."""
    night.idle()
    night.gateway.obey()
    night.later()
    assert night.state() == "asleep" and night.replicas() == []
    return night


def asleep(night: Night) -> Night:
    """Its servers are gone."""
    unloaded(night)
    let_go()
    return night


def scaled_by_a_person(night: Night) -> None:
    scale_release(
        actor=make_actor(team=night.model.team), release=night.one.release, environment=night.environment, replicas=1,
        reason="",
    )  # fmt: skip


def let_go() -> None:
    """Agents have ended what is not wanted."""
    gone = Replica.objects.filter(is_wanted=False)
    Server.objects.filter(replica__in=gone).update(is_serving=False, ended_at=timezone.now())
    gone.update(state="gone")


def bring_up() -> None:
    """Agents have brought up what is wanted."""
    for one in Replica.objects.filter(is_wanted=True, state="fetching"):
        Replica.objects.filter(pk=one.pk).update(state="ready", timings={"load_s": 1.5, "warmup_s": 0.2})
        make_server(one)
