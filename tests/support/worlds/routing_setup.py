"""The smallest world with a gateway and routes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from accounts.core.access import Actor
from accounts.models import Team
from ledger.models import Event
from registry.core.lifecycle import ReleaseState
from registry.models import Release, ServedModel
from serving.environments.core.lifecycle import ReplicaState
from serving.models import Environment, Gateway, Node, Replica, Route, Server
from serving.traffic.actions.gateways import register_gateway
from serving.traffic.actions.routes import set_route

ENGINE = Actor.system("engine")


def release(model: ServedModel, number: int, manifest: str = "{}") -> Release:
    return Release.objects.create(
        model=model, number=number, state=ReleaseState.SEALED, digest=f"sha256:{number:064x}", manifest=manifest,
        sealed_at=timezone.now(),
    )  # fmt: skip


class World:
    """One model with three releases in one environment with one gateway."""

    def __init__(self) -> None:
        self.environment = Environment.objects.create(slug="production-of-test", title="Production")
        self.model = ServedModel.objects.create(slug="sentiment", team=Team.objects.create(slug="nlp", title="NLP"))
        self.r1, self.r2, self.r3 = (release(self.model, number) for number in (1, 2, 3))
        self.gateway = register_gateway(
            actor=ENGINE, environment=self.environment, name="gateway-1", admin_url="http://127.0.0.1:9901",
            http_url="http://127.0.0.1:8000", grpc_address="127.0.0.1:8000",
        )  # fmt: skip
        Gateway.objects.update(seen_at=timezone.now() + timedelta(hours=1))  # seen, however slow the machine is

    def route(self, candidate_bp: int = 0, *, stable: Release | None = None, fence: int = 0, **more: object) -> Route:
        arms = {"stable": stable or self.r1, "candidate": self.r2, **more}
        return set_route(
            actor=ENGINE, environment=self.environment, model=self.model, candidate_bp=candidate_bp, fence=fence,
            reason="a test", **arms,  # type: ignore[arg-type]
        )  # fmt: skip

    def server(self, of: Release, *, port: int = 9000, **values: object) -> Server:
        node, _ = Node.objects.get_or_create(name="local")
        replica = Replica.objects.create(release=of, environment=self.environment, node=node, state=ReplicaState.READY)
        settled = {"is_serving": True, "http_port": port, "grpc_port": port + 1, "metrics_port": port + 2, "pid": 1}
        return Server.objects.create(replica=replica, folder="f", **{**settled, **values})


@pytest.fixture
def world(db: None) -> World:
    return World()


def events(verb: str) -> list[Event]:
    return list(Event.objects.filter(verb=verb))
