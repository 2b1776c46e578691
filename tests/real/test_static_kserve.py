"""A KServe that its owner runs, listed by an environment: its owner's release served through a real Envoy, and the agent's words."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ledger.core.errors import Unavailable
from serving.environments.core.lifecycle import LIVE
from serving.models import Node, Replica, Server
from serving.targets.core.static_servers import NOTHING, REQUEST
from serving.targets.queries.fleet import fleet_of
from tests.contracts import serving_models as made
from tests.real.test_agent import database, eventually  # noqa: F401
from tests.real.test_static_servers import Product, Users, gateway, listed, server_of, static_production, tended  # noqa: F401
from tests.support.rigs.gateway_rig import Envoy, wait_until
from tests.support.rigs.kserve_rig import kserve
from tests.support.servers.other_server import OtherServer
from tests.support.worlds.factories import make_admin

pytestmark = [pytest.mark.real("kserve", "envoy"), pytest.mark.shows("server:kserve"), pytest.mark.timeout(600)]


@pytest.fixture
def product(database: str, tmp_path: Path) -> Product:
    static_production()
    return Product(tmp_path)


@pytest.fixture
def theirs(product: Product, tmp_path: Path) -> Iterator[OtherServer]:
    """It serves the product's model, as releases declare it."""
    with kserve(tmp_path / "kserve", product.model.slug, made.serving()) as one:
        yield one


def test_what_an_owner_serves_with_kserve_is_routed_watched_and_left(
    product: Product, theirs: OtherServer, database: str, gateway: Envoy, tmp_path: Path
) -> None:
    release = product.release(1)
    place = listed(theirs.at, NOTHING)
    with tended(database, tmp_path, [place]) as machine:
        replica = product.deploy(release)
        assert replica.node_id == place.node_id
        machine.ready(replica)
        server = server_of(replica)
        assert (server.pid, server.http_port, server.digest) == (0, theirs.http_port, "")
        (offered,) = Node.objects.get(pk=place.node_id).runtimes
        assert offered["server"] == "kserve" and set(offered["versions"]) == {"kserve"}
        (view,) = [one for one in fleet_of(make_admin()) if one.node.name == place.node_id]
        assert view.static == {"address": str(theirs.at), "loads": NOTHING} and view.missing == ""
        assert (view.containment, view.held[0].attested, view.known.gpus) == ("unknown", "unknown", None)
        product.route(release)
        wait_until(gateway.is_open, "the gateway's port")
        users = Users(gateway, product.model.slug)
        try:
            users.hear("r1")
            theirs.kill()
            assert eventually(lambda: "does not answer as it should" in Replica.objects.get(pk=replica.pk).reason)
            row = Replica.objects.get(pk=replica.pk)
            assert row.state in LIVE and not Server.objects.filter(pk=server.pk, is_serving=True).exists()
            wait_until(lambda: users.ask() == "HTTP 503", "users are told the truth")
            theirs.start()
            machine.ready(replica, recoveries=1)
            users.hear("r1")
        finally:
            users.stop()
        assert users.heard("r1", "HTTP 503"), users.answered
        assert machine.kill_agent(signal.SIGTERM) == 0
        answer = theirs.client.infer(product.model.slug, {"x": np.ones((1, 4), np.float32)}, timeout_s=30)
        assert (answer.outputs["y"] == 2).all()  # its owner's model is left


def test_a_kserve_is_given_no_release_and_the_refusal_says_why(
    product: Product, theirs: OtherServer, database: str, tmp_path: Path
) -> None:
    place = listed(theirs.at, REQUEST)
    with tended(database, tmp_path, [place]):
        with pytest.raises(Unavailable, match="tells no model's configuration") as caught:
            product.deploy(product.release(1))
        assert caught.value.code == "no_node_for_runtime" and "loads=nothing" in caught.value.message
        assert f"{place.node_id} runs nothing: {theirs.at} is kserve 0." in caught.value.message
        (view,) = [one for one in fleet_of(make_admin()) if one.node.name == place.node_id]
        assert "tells no model's configuration" in view.missing
    assert theirs.client.metadata(product.model.slug)
