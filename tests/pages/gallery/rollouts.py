"""Rollouts that our own engine decided, a tick for each second of the story, on a fake gateway with traffic."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from accounts.core.access import Actor
from registry.models import Release, ServedModel
from rollouts import actions
from rollouts.core.lifecycle import LIVE
from rollouts.engine.loop import Engine
from rollouts.engine.timings import EngineTimings
from rollouts.models import Rollout
from serving.models import Environment, Gateway, Node, Replica, Route, RouteAck, Server
from serving.traffic.actions.routes import set_route
from tests.pages.gallery.clock import StoryClock
from tests.support.fakes.gateway import FakeGateway
from tests.support.rigs.engine_rig import ROOM, hear_everyone

AT_ONCE = EngineTimings(zero_poll_for_s=0.0, gone_over_s=0.0, effects_share=ROOM)


class Traffic:
    """One environment with one gateway, its engine, and the requests of every second."""

    def __init__(self, environment: Environment, clock: StoryClock) -> None:
        self.environment, self.clock = environment, clock
        self.refused: dict[int, str] = {}
        Gateway.objects.create(
            environment=environment, name="gateway-1", admin_url="http://127.0.0.1:9901", http_url="http://127.0.0.1:8701",
            grpc_address="127.0.0.1:8702", seen_at=timezone.now(),
        )  # fmt: skip
        self.gateway = FakeGateway("gateway-1", seed=11, now=clock.now)
        self.engine = hear_everyone(Engine(self.gateway, tick_s=0.05, lease_s=6000, timings=AT_ONCE, clock=clock))

    def server(self, release: Release, node: str = "gpu-1", *, is_serving: bool = True, **over: Any) -> Server:
        """The release's replica, ready, with a server that answered a moment ago."""
        replica, _ = Replica.objects.get_or_create(
            release=release, environment=self.environment, node=Node.objects.get(pk=node),
            defaults={"state": "ready", "ready_at": timezone.now(), "timings": {"fetch_s": 3.2, "load_s": 6.8, "warmup_s": 0.4}},
        )  # fmt: skip
        port = 9000 + 3 * replica.pk
        return Server.objects.create(
            replica=replica, http_port=port, grpc_port=port + 1, metrics_port=port + 2, pid=4000 + replica.pk,
            folder="nowhere", is_serving=is_serving, probed_at=timezone.now(), drift_checked_at=timezone.now(), **over,
        )  # fmt: skip

    def serve(self, release: Release, reason: str = "It serves.") -> None:
        """All of the environment's traffic for the model goes to this release."""
        self.server(release)
        set_route(
            actor=Actor.system("engine"), environment=self.environment, model=release.model, stable=release, reason=reason
        )  # fmt: skip
        self.gateway.obey()

    def turn(self, requests: int) -> None:
        """A second passes: requests come for every model that moves, the engine looks once, the gateway takes what was written."""
        self.clock.pass_s(1.0)
        for slug in (
            Route.objects.filter(model__rollouts__state__in=LIVE).values_list("model__slug", flat=True).distinct()
        ):
            self.gateway.traffic(requests, slug)
        self.engine.step()
        self.gateway.obey()
        for route_id, why in self.refused.items():
            RouteAck.objects.filter(route=route_id).update(generation=0, taken=0, error=why)

    def start(self, actor: Actor, candidate: Release, reason: str = "") -> Rollout:
        self.server(candidate)
        return actions.start_rollout(actor=actor, candidate=candidate, environment=self.environment, reason=reason)

    def until(
        self, rollout: Rollout, *states: str, requests: int = 24, most: int = 400, step: int | None = None
    ) -> Rollout:
        """Seconds, until the rollout is in one of the states (and at the step, if one is named). Raises AssertionError after `most`."""
        for _ in range(most):
            self.turn(requests)
            rollout.refresh_from_db()
            if rollout.state in states and (step is None or rollout.step_index >= step):
                return rollout
        raise AssertionError(
            f"rollout {rollout.pk} is still {rollout.state} at step {rollout.step_index}: {rollout.reason}"
        )

    def for_s(self, rollout: Rollout, seconds: int, requests: int = 24) -> Rollout:
        for _ in range(seconds):
            self.turn(requests)
        rollout.refresh_from_db()
        return rollout

    def behave(self, release: Release, **how: Any) -> None:
        """How its server answers from now on: see `tests.support.fakes.gateway.Behaviour`."""
        self.gateway.set_arm(release.digest or "", **how)

    def refuse(self, model: ServedModel, why: str) -> None:
        """From now on the gateway follows no route of the model's."""
        self.refused[Route.objects.get(model=model, environment=self.environment).pk] = why
