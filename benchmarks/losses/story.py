"""What the database says while hosts are lost: routes and who follows them, rollouts, and who leads."""

from __future__ import annotations

from django.db import connections

from accounts.core.access import Actor
from benchmarks.losses.doubled import doubled
from benchmarks.losses.world import GATEWAYS, NODES, SERVERS, Machines, until
from ledger.actions.leases import holder
from ledger.models import Lease
from registry.models import Release, ServedModel
from rollouts import actions
from rollouts.models import Rollout
from serving.actions.routes import set_route
from serving.core.lifecycle import DeploymentState
from serving.models import Deployment, Node, Route
from serving.queries.routes import acknowledged
from tests.factories import make_admin, make_environment, make_model, make_node, make_release, make_server
from tests.stub_server import MODEL

ADMIN = Actor.system("setup")
STAGE = {"min_s": 3600, "min_samples": 10**6, "deadline_s": 7200}
#: It shifts a quarter of the traffic and stays there, whatever it sees, until a person ends it.
POLICY = {
    "preset": "demo",
    "second_look": {"looks": 1},
    "steps": [{"weight_pct": 25, **STAGE}],
    "bake": STAGE,
    "no_data_s": 3600,
}


class Story:
    """Two models: users ask MODEL, which rollouts change; nobody asks `steady`, whose weight shows whether decisions arrive."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self.person = make_admin("operator")
        self.environment = make_environment("production", needs_passed_report=False)
        self.model = make_model(MODEL, objectives={"errors_max_frac": 0.9}, rollout_policy=POLICY)
        self.steady = make_model("steady")
        for name in NODES:
            make_node(name)
        self.stable = self._release(self.model, "r1")
        self._pair = self._release(self.steady, "r1"), self._release(self.steady, "r2")
        self._bp = 0
        machines.make_gateways(self.environment)
        set_route(actor=ADMIN, environment=self.environment, model=self.model, stable=self.stable, reason="It serves.")
        self.decide()

    def _release(self, model: ServedModel, servers: str) -> Release:
        """Served by this one of each node's two stub servers."""
        made = make_release(model)
        port = SERVERS[servers]
        for slot, name in enumerate(NODES):
            where = Deployment.objects.create(
                release=made, environment=self.environment, node=Node.objects.get(name=name), slot=slot,
                state=DeploymentState.READY,
            )  # fmt: skip
            at = self._machines.host(name).address
            make_server(where, host=at, http_port=port, grpc_port=port + 1, metrics_port=port + 2)
        return made

    def begin(self) -> float:
        """Seconds until every gateway follows its routes, once all hosts were started."""
        return self.arrives(self.decide(), 120)

    # -- decisions that need no engine ---------------------------------------------------------------------------------

    def decide(self) -> Route:
        """Another weight for `steady`."""
        self._bp = 5000 if self._bp != 5000 else 1000
        stable, candidate = self._pair
        return set_route(
            actor=ADMIN, environment=self.environment, model=self.steady, stable=stable, candidate=candidate,
            candidate_bp=self._bp, reason="To see whether it arrives.",
        )  # fmt: skip

    def arrives(self, route: Route, within_s: float) -> float:
        """Seconds until every gateway follows it."""
        return until(lambda: len(acknowledged(route).taken_by) == len(GATEWAYS), "every gateway follows it", within_s)

    # -- rollouts ----------------------------------------------------------------------------------------------------

    def start_rollout(self) -> Rollout:
        """One that has a quarter of the traffic, for ever."""
        candidate = self._release(self.model, "r2")
        made = actions.start_rollout(actor=self.person, candidate=candidate, environment=self.environment)
        until(lambda: self._now(made).state == "shifting" and self._now(made).step_started_at, "it shifts", 60)
        return made

    def abort(self, rollout: Rollout) -> None:
        now = self._now(rollout)
        actions.abort(actor=self.person, rollout=now, expected_version=now.version, reason="To see it taken back.")

    def has_ended(self, rollout: Rollout) -> bool:
        return self._now(rollout).state == "rolled_back"

    def state(self, rollout: Rollout) -> str:
        return str(self._now(rollout).state)

    def _now(self, rollout: Rollout) -> Rollout:
        return Rollout.objects.get(pk=rollout.pk)

    def leader(self) -> str:
        """The host of the engine that leads, by who of its processes holds the lease; empty when nobody is known to."""
        found = Lease.objects.filter(name="engine").values_list("owner", flat=True).first() or ""
        pids = {name: self._machines.host(name).pids() for name in ("ctl-a", "ctl-b")}
        return next((name for name, here in pids.items() if any(f":{pid}:" in found for pid in here)), "")

    def is_led(self) -> bool:
        return holder("engine") is not None

    @staticmethod
    def forget_connections() -> None:
        connections.close_all()

    def token(self) -> int:
        return Lease.objects.get(name="engine").token

    # -- afterwards --------------------------------------------------------------------------------------------------

    @staticmethod
    def twice() -> list[str]:
        return doubled()

    def end(self) -> None:
        """Nothing goes on."""
