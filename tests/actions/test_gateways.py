"""Gateways: registered, refused, and told of."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.core.errors import Invalid, Refused, Stale, StateChanged
from serving.models import Environment, Gateway
from serving.traffic.actions.gateways import drain_gateway, register_gateway, remove_gateway, resume_gateway
from serving.traffic.control_plane import plane as plane_module
from serving.traffic.control_plane import store
from tests.support.worlds.routing_setup import ENGINE, World, events, world  # noqa: F401


def test_registering_again_updates_and_the_same_changes_nothing(world: World) -> None:
    def register(port: int) -> Gateway:
        return register_gateway(
            actor=ENGINE, environment=world.environment, name="gateway-1", admin_url="http://127.0.0.1:9901",
            http_url=f"http://127.0.0.1:{port}", grpc_address="127.0.0.1:8000",
        )  # fmt: skip

    register(8000)
    assert len(events("gateway.registered")) == 1
    assert register(8100).http_url.endswith(":8100")
    assert len(events("gateway.registered")) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [("admin_url", "127.0.0.1:1"), ("admin_url", "unix:admin.sock"), ("admin_url", "unix:/" + "a" * 107),
     ("http_url", "http://127.0.0.1"), ("grpc_address", "localhost"),
     ("http_url", "http://127.0.0.1:99999"), ("http_url", "http://me:secret@127.0.0.1:2"), ("http_url", "http://127.0.0.1:2/v2"),
     ("http_url", "http://127.0.0.1:2?a=b"), ("grpc_address", "127.0.0.1:2/v2"), ("grpc_address", "me@127.0.0.1:2")],
)  # fmt: skip
def test_an_address_that_is_not_a_host_and_a_port_is_refused(world: World, field: str, value: str) -> None:
    addresses = {
        "admin_url": "http://127.0.0.1:1", "http_url": "http://127.0.0.1:2", "grpc_address": "127.0.0.1:2",
    }  # fmt: skip
    with pytest.raises(Invalid, match=field):
        register_gateway(actor=ENGINE, environment=world.environment, name="g", **{**addresses, field: value})


def test_only_administrators_register_gateways(world: World) -> None:
    with pytest.raises(Refused):
        register_gateway(
            actor=Actor(name="eve", roles=(("nlp", Role.RELEASE_MANAGER),)), environment=world.environment, name="g",
            admin_url="http://127.0.0.1:1", http_url="http://127.0.0.1:2", grpc_address="127.0.0.1:2",
        )  # fmt: skip


def test_a_gateway_of_this_machine_may_be_asked_through_a_socket_file(world: World) -> None:
    gateway = register_gateway(
        actor=ENGINE, environment=world.environment, name="g", admin_url="unix:/run/admin.sock",
        http_url="http://127.0.0.1:2", grpc_address="127.0.0.1:2",
    )  # fmt: skip
    assert gateway.admin_url == "unix:/run/admin.sock"


def test_the_command_registers_a_gateway_and_prints_what_its_envoy_is_started_with(world: World) -> None:
    said = StringIO()
    about = [
        "--environment",
        world.environment.slug,
        "--http-url",
        "http://10.0.0.9:80",
        "--grpc-address",
        "10.0.0.9:81",
    ]
    far = ["--control-planes", "10.0.0.1:18000,10.0.0.2:18000", "--counters", "10.0.0.9:9902"]
    with pytest.raises(CommandError, match="spiffe://sluicegate/gateway/far"):
        call_command("register_gateway", "far", *about, *far, stdout=said)
    files = ["--certificate", "/etc/gw.crt", "--key", "/etc/gw.key", "--authority", "/etc/ca.crt"]
    call_command("register_gateway", "far", *about, *far, *files, stdout=said)
    gateway = Gateway.objects.get(name="far")
    assert (gateway.admin_url, gateway.http_url) == ("https://10.0.0.9:9902", "http://10.0.0.9:80")
    printed = json.loads(said.getvalue())
    static = printed["static_resources"]
    assert printed["admin"]["address"]["pipe"] == {"path": "/run/sluicegate/far-admin.sock", "mode": 0o600}
    assert static["clusters"][0]["transport_socket"]["name"] == "envoy.transport_sockets.tls"
    assert (
        static["listeners"][-1]["filter_chains"][0]["transport_socket"]["typed_config"]["require_client_certificate"]
        is True
    )
    said, warned = StringIO(), StringIO()
    call_command(
        "register_gateway",
        "near",
        *about,
        "--admin",
        "unix:/run/admin.sock",
        "--heap-mib",
        "512",
        stdout=said,
        stderr=warned,
    )
    assert Gateway.objects.get(name="near").admin_url == "unix:/run/admin.sock" and warned.getvalue() == ""
    heap = json.loads(said.getvalue())["overload_manager"]["resource_monitors"][0]["typed_config"]
    assert heap["max_heap_size_bytes"] == str(512 << 20)
    call_command("register_gateway", "tcp", *about, "--admin", "127.0.0.1:9901", stdout=said, stderr=warned)
    assert "every user of the gateway's machine" in warned.getvalue()
    said = StringIO()
    call_command("register_gateway", "far", *about, *far, *files, "--relay", "unix:/run/relay.sock", stdout=said)
    ads = json.loads(said.getvalue())["static_resources"]["clusters"][0]
    (host,) = ads["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert host["endpoint"]["address"] == {"pipe": {"path": "/run/relay.sock"}} and "transport_socket" not in ads
    with pytest.raises(CommandError, match="--relay must be unix:/path"):
        call_command("register_gateway", "far", *about, *far, *files, "--relay", "10.0.0.9:1", stdout=said)
    with pytest.raises(CommandError, match="--heap-mib"):
        call_command("register_gateway", "small", *about, "--heap-mib", "1", stdout=said)


def test_the_last_gateway_that_is_ready_is_drained_only_by_who_says_so(world: World) -> None:
    gateway = world.gateway
    with pytest.raises(Invalid) as refused:
        drain_gateway(actor=ENGINE, gateway=gateway, reason="", is_confirmed=False)
    assert refused.value.code == "not_confirmed"
    another = Gateway.objects.create(environment=world.environment, name="eu-2", http_url="http://127.0.0.1:1",
                                     grpc_address="127.0.0.1:1", seen_at=timezone.now() + timedelta(hours=1))  # fmt: skip
    drained = drain_gateway(actor=ENGINE, gateway=gateway, reason=" kernel update ", is_confirmed=False)
    assert drained.drained_at and (drained.drained_by, drained.drain_reason) == (ENGINE.name, "kernel update")
    again = drain_gateway(actor=ENGINE, gateway=gateway, reason="again", is_confirmed=False)
    assert again.drain_reason == "kernel update" and len(events("gateway.drained")) == 1
    with pytest.raises(Invalid):  # the one that is left
        drain_gateway(actor=ENGINE, gateway=another, reason="", is_confirmed=False)
    assert store.load().gateways["gateway-1"].is_drained and not store.load().gateways["eu-2"].is_drained


def test_who_saw_an_older_gateway_changes_nothing(world: World) -> None:
    drain_gateway(actor=ENGINE, gateway=world.gateway, reason="", is_confirmed=True, expected_version=1)
    with pytest.raises(Stale):
        resume_gateway(actor=ENGINE, gateway=world.gateway, expected_version=1)
    assert resume_gateway(actor=ENGINE, gateway=world.gateway, expected_version=2).drained_at is None
    assert resume_gateway(actor=ENGINE, gateway=world.gateway).version == 3  # nothing to do
    assert [one.reason for one in events("gateway.resumed")] == [""]


def test_registering_a_drained_gateway_again_leaves_it_drained(world: World) -> None:
    drain_gateway(actor=ENGINE, gateway=world.gateway, reason="", is_confirmed=True)
    found = register_gateway(
        actor=ENGINE, environment=world.environment, name="gateway-1", admin_url="http://127.0.0.1:9901",
        http_url="http://127.0.0.1:8100", grpc_address="127.0.0.1:8100",
    )  # fmt: skip
    assert (found.drained_at is None, found.version) == (False, 3)


def test_a_gateway_goes_to_no_other_environment_while_it_is_on_the_list(world: World) -> None:
    """It would go on routing users of the first by what it last heard, and no rollback there would wait for it."""
    canary = Environment.objects.create(slug="canary", title="Canary")
    same = {"admin_url": "http://127.0.0.1:9901", "http_url": "http://127.0.0.1:8000", "grpc_address": "127.0.0.1:8000"}
    with pytest.raises(
        StateChanged,
        match="gateway-1 is a gateway of production-of-test.*sluicegate api POST /gateways/gateway-1/remove",
    ) as refused:
        register_gateway(actor=ENGINE, environment=canary, name="gateway-1", **same)
    assert refused.value.code == "gateway_in_use"
    assert Gateway.objects.get().environment == world.environment and len(events("gateway.registered")) == 1
    Gateway.objects.update(seen_at=timezone.now() - timedelta(minutes=1))
    remove_gateway(actor=ENGINE, gateway=world.gateway, reason="")
    assert register_gateway(actor=ENGINE, environment=canary, name="gateway-1", **same).environment == canary


def test_a_gateway_that_speaks_is_not_removed_and_a_silent_one_is(world: World) -> None:
    world.route(5000)
    with pytest.raises(StateChanged, match="gateway-1 is connected") as refused:
        remove_gateway(actor=ENGINE, gateway=world.gateway, reason="")
    assert refused.value.code == "gateway_in_use"
    Gateway.objects.update(seen_at=timezone.now() - timedelta(minutes=1))
    remove_gateway(actor=ENGINE, gateway=world.gateway, reason="burnt down")
    (event,) = events("gateway.removed")
    assert event.facts["name"] == "gateway-1" and event.reason == "burnt down"
    assert not Gateway.objects.exists() and store.load().gateways == {}


@pytest.mark.parametrize("verb", [drain_gateway, resume_gateway, remove_gateway])
def test_only_administrators_change_gateways(world: World, verb: Callable[..., object]) -> None:
    eve = Actor(name="eve", roles=(("nlp", Role.RELEASE_MANAGER),))
    with pytest.raises(Refused):
        verb(actor=eve, gateway=world.gateway, reason="", **({"is_confirmed": True} if verb is drain_gateway else {}))


def test_a_refused_stream_is_told_once_in_a_while(world: World) -> None:
    plane = plane_module.ControlPlane()
    gateway = store.load().gateways["gateway-1"]
    for _ in range(3):
        plane.record_refusal(gateway, "ipv4:127.0.0.1:5", "it is connected already")
    ((gateway_id, peer, reason),) = plane._refusals
    store.write_refusal(gateway_id, peer, reason)
    (event,) = events("gateway.stream_refused")
    assert event.facts == {"name": "gateway-1", "peer": peer} and event.reason == reason
    store.write_refusal(0, peer, reason)  # of a gateway that is gone meanwhile
    assert len(events("gateway.stream_refused")) == 1


def test_a_refused_stream_is_told_though_the_database_fails_at_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, errors, written = plane_module.ControlPlane(), [DatabaseError("away")], list[str]()

    def write(_gateway_id: int, peer: str, _reason: str) -> None:
        if errors:
            raise errors.pop()
        written.append(peer)

    monkeypatch.setattr(store, "write_refusal", write)
    plane.record_refusal(store.load().gateways["gateway-1"], "ipv4:127.0.0.1:5", "it is connected already")

    async def beat() -> None:
        with pytest.raises(DatabaseError):
            await plane._write_refusals()
        await plane._write_refusals()
        await plane._write_refusals()

    asyncio.run(beat())
    assert written == ["ipv4:127.0.0.1:5"]
