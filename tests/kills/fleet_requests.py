"""What people ask of the fleet by the REST API, in stories that web processes are killed in: what was before, and what is to come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.utils import timezone

from serving.models import Environment, Gateway, Replica
from serving.traffic.actions.gateways import drain_gateway
from tests.kills.fleet_stories import PEOPLE, Chapter, Fleet, FleetStory

#: If-Match: whatever version there is; and where none is asked for.
ANY, NONE = "*", ""
#: Statuses of a request that was carried out before: gone, or leaving.
GONE, LEAVING = 404, 409
WHY = {"reason": "Repair."}
DRAIN = {**WHY, "is_confirmed": True}
REPLICAS = "models/double/releases/r1/replicas"


@dataclass(frozen=True)
class Request:
    """As a program makes it. `on`: the node whose replica `body` is about. `version`: of If-Match, read before it is asked the first time.

    `told`: the event that tells of it, once. `done`: what may be answered, beside success, to who asks for what was done already.
    """

    path: str
    told: str
    body: Mapping[str, Any] = field(default_factory=lambda: WHY)
    on: str = ""
    version: Callable[[], str] = lambda: ANY
    done: frozenset[int] = frozenset()

    def whole_body(self) -> dict[str, Any]:
        about = {"replica": Replica.objects.get(node=self.on).pk} if self.on else {}
        return {**self.body, **about}


@dataclass(frozen=True)
class RequestStory:
    """`request` is made once `before` has settled, and then `wanted` replicas answer and nothing else is there.

    `least`: so many answer at every moment meanwhile. `unwatched`: what is done right before it, and leads to nothing by itself.
    `afterwards`: what shows that it holds.
    """

    before: FleetStory
    request: Request
    wanted: int = 0
    least: int = 0
    unwatched: Callable[[Fleet], object] = lambda fleet: None
    afterwards: tuple[Chapter, ...] = ()

    @property
    def name(self) -> str:
        return self.before.name

    def seed(self) -> None:
        self.before.seed()
        for name in ("one", "two"):
            at = {"admin_url": "http://127.0.0.1:1", "http_url": "http://127.0.0.1:2", "grpc_address": "127.0.0.1:3"}
            Gateway.objects.create(environment=Environment.objects.get(), name=name, seen_at=timezone.now(), **at)


def _gateway_drained(_: Fleet) -> None:
    drain_gateway(actor=PEOPLE, gateway=Gateway.objects.get(name="one"), reason="Repair.", is_confirmed=True)


def _gateway_silent(_: Fleet) -> None:
    Gateway.objects.filter(name="one").update(seen_at=timezone.now() - timedelta(minutes=5))


def _nobody_is_there(name: str) -> FleetStory:
    return FleetStory(name, "", (), victim="", nodes="")


def _before(name: str, stand: str, *chapters: Chapter, **over: Any) -> FleetStory:
    return FleetStory(name, stand, chapters, victim="", **over)


def _scale(replicas: int) -> Request:
    return Request(REPLICAS, "deployment.scaled", {**WHY, "environment": "production", "replicas": replicas})


def _replace(told: str, **body: Any) -> Request:
    done = frozenset({GONE, LEAVING})
    return Request(f"{REPLICAS}/replace", told, {**WHY, **body}, on="a", version=lambda: NONE, done=done)


_TO_ADD = {
    "name": "three",
    "environment": "production",
    "http_url": "http://127.0.0.1:5",
    "grpc_address": "127.0.0.1:6",
}
REQUESTS = [
    RequestStory(_before("scaled up", "a"), _scale(3), 3, 1),
    RequestStory(_before("scaled down", "abc"), _scale(1), 1, 1),
    RequestStory(_before("replaced", "ab"), _replace("deployment.requested"), 2, 2),
    RequestStory(_before("replaced and set aside", "ab"), _replace("deployment.set_aside", set_aside=True), 2, 1),
    RequestStory(
        _nobody_is_there("gateway drained"),
        Request("gateways/one/drain", "gateway.drained", DRAIN),
    ),
    RequestStory(
        _nobody_is_there("gateway resumed"),
        Request("gateways/one/resume", "gateway.resumed"),
        unwatched=_gateway_drained,
    ),
    RequestStory(
        _nobody_is_there("gateway removed"),
        Request("gateways/one/remove", "gateway.removed", done=frozenset({GONE})),
        unwatched=_gateway_silent,
    ),
    RequestStory(
        _nobody_is_there("gateway added"), Request("gateways", "gateway.registered", _TO_ADD, version=lambda: NONE)
    ),
]
