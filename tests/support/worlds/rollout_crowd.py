"""Many rollouts and one engine: models, environments with a fake gateway each, and turns that are taken one by one."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

from accounts.core.access import Actor
from rollouts import actions
from rollouts.engine.loop import Engine
from rollouts.engine.timings import EngineTimings
from rollouts.models import Rollout
from serving.models import Gateway
from serving.ports import GatewayCounters, GatewayError
from serving.traffic.actions.routes import set_route
from tests.support.fakes.gateway import FakeGateway
from tests.support.rigs.engine_rig import ROOM, hear_everyone
from tests.support.worlds.factories import (
    make_admin,
    make_environment,
    make_model,
    make_release,
    make_replica,
    make_server,
)

OBJECTIVES = {"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.01}}
#: The fake gateways acknowledge between two turns, and turns follow at once.
AT_ONCE = EngineTimings(zero_poll_for_s=0.0, gone_over_s=0.0, effects_share=ROOM)
#: One step that lasts: the rollouts shall go on, not end.
POLICY: dict[str, Any] = {
    "preset": "demo",
    "second_look": {"looks": 1},
    "steps": [{"weight_pct": 25, "min_s": 3600, "min_samples": 40, "deadline_s": 7200}],
    "no_data_s": 600,
    "instant_window_s": 0,
}


#: Beside it, every wait that a test allows is short.
HANGS_S = 120.0


class Gateways:
    """TrafficCounters over several fake gateways. `hung` ones answer when they are let go; `asked` counts the questions."""

    def __init__(self) -> None:
        self.fakes: dict[str, FakeGateway] = {}
        self.hung: set[str] = set()
        self.go_on = threading.Event()
        self.asked: list[str] = []

    def read(
        self, *, gateway: str, admin_url: str, timeout_s: float, models: Collection[str] | None = None
    ) -> dict[str, GatewayCounters]:
        self.asked.append(gateway)
        if gateway in self.hung:
            self.go_on.wait(HANGS_S)
            raise GatewayError("timeout", "it hung")
        return self.fakes[gateway].read(gateway=gateway, admin_url=admin_url, timeout_s=timeout_s, models=models)


class World:
    """Models, each with a rollout, in environments with a gateway each."""

    def __init__(
        self, *, models: int = 1, environments: int = 1, engine: dict[str, Any] | None = None, **policy: Any
    ) -> None:
        self.admin = make_admin()
        self.gateways = Gateways()
        self.engine = self.new_engine(**engine or {})
        self.rollouts: list[Rollout] = []
        for index in range(environments):
            environment = make_environment(f"place-{index}", needs_passed_report=False)
            Gateway.objects.create(
                environment=environment,
                name=f"gateway-{index}",
                admin_url="",
                http_url="http://127.0.0.1:2",
                grpc_address="127.0.0.1:3",
            )
            fake = FakeGateway(f"gateway-{index}", seed=5 + index, now=self.engine.clock.now)
            self.gateways.fakes[fake.name] = fake
            for _ in range(models):
                self.rollouts.append(self._rollout(environment, policy))

    def new_engine(self, **options: Any) -> Engine:
        return hear_everyone(Engine(self.gateways, tick_s=1.0, lease_s=600, **{"timings": AT_ONCE, **options}))

    def _rollout(self, environment: Any, policy: dict[str, Any]) -> Rollout:
        model = make_model(objectives=OBJECTIVES, rollout_policy={**POLICY, **policy})
        stable, candidate = make_release(model), make_release(model)
        for release in (stable, candidate):
            make_server(make_replica(release, environment, state="ready"))
        set_route(actor=Actor.system("test"), environment=environment, model=model, stable=stable, reason="It serves.")
        return actions.start_rollout(actor=self.admin, candidate=candidate, environment=environment)

    def traffic(self, requests: int = 60) -> None:
        for rollout in self.rollouts:
            self.fake_of(rollout).traffic(requests, rollout.model.slug)

    def fake_of(self, rollout: Rollout) -> FakeGateway:
        name = Gateway.objects.get(environment=rollout.environment).name
        return self.gateways.fakes[name]

    def obey(self) -> None:
        for fake in self.gateways.fakes.values():
            fake.obey()

    def turn(self, requests: int = 60) -> None:
        self.obey()
        self.traffic(requests)
        self.engine.step()
        for rollout in self.rollouts:
            rollout.refresh_from_db()

    def until_shifting(self) -> None:
        for _ in range(10):
            self.turn()
            self.obey()
            if all(rollout.step_started_at for rollout in self.rollouts):
                return
        raise AssertionError([(rollout.state, rollout.reason) for rollout in self.rollouts])
