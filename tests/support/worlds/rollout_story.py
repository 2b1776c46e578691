"""One rollout's story on a real database and a fake gateway: an engine whose turns are taken one by one."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import F
from django.utils import timezone

from accounts.core.access import Actor
from registry.models import Release
from rollouts import actions
from rollouts.engine.loop import Engine
from rollouts.engine.timings import EngineTimings
from rollouts.models import DecisionRecord, Rollout
from serving.models import Gateway, Replica, Route
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
#: The fake gateway acknowledges between ticks, not during them; and ticks follow at once, as if a second had passed.
AT_ONCE = EngineTimings(zero_poll_for_s=0.0, gone_over_s=0.0, effects_share=ROOM)
#: The demo's tolerances with no waiting: only numbers differ.
POLICY = {
    "preset": "demo",
    "cold_s": 0,  # turns are made as fast as they go, so hardly a second passes for a server to warm up in
    "steps": [{"weight_pct": weight, "min_s": 0, "min_samples": 40, "deadline_s": 600} for weight in (25, 50)],
    "bake": {"min_s": 0, "min_samples": 40, "deadline_s": 600},
    "no_data_s": 600,
    "instant_window_s": 0,
}


class Story:
    """One model in one environment with one gateway, an engine, and what a test does to them."""

    def __init__(self, *, with_stable: bool = True, timings: EngineTimings | None = None, **policy: object) -> None:
        self.admin = make_admin()
        self.model = make_model(objectives=OBJECTIVES, rollout_policy={**POLICY, **policy})
        self.environment = make_environment("production", needs_passed_report=False)
        Gateway.objects.create(
            environment=self.environment,
            name="gateway-1",
            admin_url="http://127.0.0.1:1",
            http_url="http://127.0.0.1:2",
            grpc_address="127.0.0.1:3",
        )
        self.gateway = FakeGateway("gateway-1", seed=5)
        self.engine = self.new_engine(timings or AT_ONCE)
        self.stable: Release | None = self.serve(make_release(self.model)) if with_stable else None
        if self.stable:
            set_route(
                actor=Actor.system("test"),
                environment=self.environment,
                model=self.model,
                stable=self.stable,
                reason="It serves.",
            )
            self.gateway.obey()
        self.candidate = self.serve(make_release(self.model))
        self.rollout = actions.start_rollout(actor=self.admin, candidate=self.candidate, environment=self.environment)

    def new_engine(self, timings: EngineTimings = AT_ONCE) -> Engine:
        return hear_everyone(Engine(self.gateway, tick_s=0.05, lease_s=600, timings=timings))

    def serve(self, release: Release) -> Release:
        replica = make_replica(release, self.environment, state="ready")
        port = (
            9000 + 3 * Replica.objects.filter(environment=self.environment).count()
        )  # tests put their own at 9900 and up
        make_server(replica, http_port=port, grpc_port=port + 1, metrics_port=port + 2)
        return release

    def turn(self, requests: int = 200) -> Rollout:
        """Traffic, then one tick of the engine, then the gateway takes what was written."""
        if Route.objects.exists() and requests:
            self.gateway.traffic(requests)
        self.engine.step()
        if Route.objects.exists():
            self.gateway.obey()
        self.rollout.refresh_from_db()
        return self.rollout

    def until(self, state: str, *, turns: int = 80, requests: int = 200) -> Rollout:
        for _ in range(turns):
            if self.turn(requests).state == state:
                return self.rollout
        said = [(d.action, d.code, d.reason) for d in DecisionRecord.objects.order_by("pk")]
        raise AssertionError(f"still {self.rollout.state}, not {state}: {self.rollout.reason} {said}")

    def codes(self) -> list[str]:
        return list(DecisionRecord.objects.filter(rollout=self.rollout).order_by("pk").values_list("code", flat=True))

    def route(self) -> Route:
        return Route.objects.get(environment=self.environment, model=self.model)


def began_earlier(seconds: float, *rules: str) -> None:
    """As if the rollout had begun so much earlier, and so had the time without a server that these rules keep."""
    rollout = Rollout.objects.get()
    states = rollout.engine_state["rules"]
    earlier = {name: states[name] | {"gone_since": states[name]["gone_since"] - seconds} for name in rules}
    kept = rollout.engine_state | {"rules": states | earlier}
    Rollout.objects.update(
        started_at=timezone.now() - timedelta(seconds=seconds), engine_state=kept, version=F("version") + 1
    )
