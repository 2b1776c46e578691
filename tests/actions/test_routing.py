"""Writing routes, and asking whether gateways follow them."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection
from django.utils import timezone

from accounts.core.access import Actor, Role, Verb
from accounts.models import Team
from ledger.core.errors import Invalid, Refused, Stale
from ledger.models import Event
from ledger.queries import clock
from registry.core.envelope import LARGEST_REQUEST_BYTES
from registry.core.lifecycle import ReleaseState
from registry.models import Release, ServedModel
from serving.actions import routes as routing
from serving.actions.routes import register_gateway, set_route
from serving.adapters.mirror_secret import mirror_secret
from serving.control_plane import plane as plane_module
from serving.control_plane import store
from serving.control_plane.snapshot import Snapshot
from serving.core.addresses import Address
from serving.core.lifecycle import DeploymentState
from serving.core.routes import IN_FLIGHT_PER_INSTANCE, REQUEST_BYTES, Limits, Prober, RoutingTable, admit
from serving.models import Deployment, Environment, Gateway, Node, Route, RouteAck, Server
from serving.queries.routes import SEEN_WITHIN_S, acknowledged
from tests.fakes.gateway import FakeGateway

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
        Gateway.objects.update(seen_at=timezone.now())

    def route(self, candidate_bp: int = 0, *, stable: Release | None = None, fence: int = 0, **more: object) -> Route:
        arms = {"stable": stable or self.r1, "candidate": self.r2, **more}
        return set_route(
            actor=ENGINE, environment=self.environment, model=self.model, candidate_bp=candidate_bp, fence=fence,
            reason="a test", **arms,  # type: ignore[arg-type]
        )  # fmt: skip

    def server(self, of: Release, *, port: int = 9000, **values: object) -> Server:
        node, _ = Node.objects.get_or_create(name="local")
        deployment = Deployment.objects.create(
            release=of, environment=self.environment, node=node, state=DeploymentState.READY
        )
        settled = {"is_serving": True, "http_port": port, "grpc_port": port + 1, "metrics_port": port + 2, "pid": 1}
        return Server.objects.create(deployment=deployment, folder="f", **{**settled, **values})


@pytest.fixture
def world(db: None) -> World:
    return World()


def events(verb: str) -> list[Event]:
    return list(Event.objects.filter(verb=verb))


def test_a_route_is_made_and_changed_with_growing_generations(world: World) -> None:
    first = world.route(0)
    second = world.route(500)
    assert (first.generation, second.generation) == (1, 2)
    assert first.pk == second.pk
    world.environment.refresh_from_db()
    assert world.environment.generation == 2
    (_, changed) = events("route.set")
    assert changed.facts["before"] == "r2 0 %, r1 100 %"
    assert changed.facts["after"] == "r2 5 %, r1 95 %"
    assert changed.reason == "a test"


def test_writing_the_same_route_changes_nothing_but_keeps_the_fence(world: World) -> None:
    world.route(500, fence=3)
    again = world.route(500, fence=4)
    assert again.generation == 1
    assert Route.objects.get().fence == 4
    assert len(events("route.set")) == 1


def test_mirroring_is_part_of_the_route_and_ends_when_it_is_not_asked_for(world: World) -> None:
    assert world.route(0, mirror_bp=2000).generation == 1
    assert world.route(0, mirror_bp=2000).generation == 1
    ended = world.route(0)
    assert (ended.generation, ended.mirror_bp) == (2, 0)
    begun, over = events("route.set")
    assert begun.facts["after"] == "r2 0 %, r1 100 %, 20 % mirrored"
    assert (begun.facts["mirror_bp"], over.facts["mirror_bp"]) == (2000, 0)


@pytest.mark.parametrize(("bp", "more"), [(-1, {}), (10_001, {}), (1, {"candidate": None})])
def test_a_mirrored_share_that_makes_no_sense_is_refused(world: World, bp: int, more: dict[str, object]) -> None:
    with pytest.raises(Invalid) as caught:
        world.route(0, mirror_bp=bp, **more)
    assert caught.value.code == "route_mirror"
    assert not Route.objects.exists()


def test_to_mirror_more_is_to_open_and_to_mirror_less_is_to_shut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Verb] = []
    monkeypatch.setattr(routing, "require", lambda actor, verb, team: asked.append(verb))
    for mirror_bp in (1000, 1001, 500, 0):
        world.route(0, mirror_bp=mirror_bp)
    assert asked == [Verb.START_ROLLOUT, Verb.START_ROLLOUT, Verb.ROLL_BACK, Verb.ROLL_BACK]


def test_an_engine_that_no_longer_leads_is_fenced_out(world: World) -> None:
    world.route(500, fence=4)
    with pytest.raises(Stale) as caught:
        world.route(1000, fence=3)
    assert caught.value.code == "fence_outdated"
    assert "token 4" in caught.value.message
    assert Route.objects.get().candidate_bp == 500


@pytest.mark.parametrize("bp", [-1, 10_001])
def test_a_weight_out_of_range_is_refused(world: World, bp: int) -> None:
    with pytest.raises(Invalid, match="basis points"):
        world.route(bp)
    assert not Route.objects.exists()


def test_a_weight_without_a_candidate_is_refused(world: World) -> None:
    with pytest.raises(Invalid, match="needs a candidate"):
        world.route(1, candidate=None)


def test_one_release_cannot_be_both_arms(world: World) -> None:
    with pytest.raises(Invalid, match="stable and candidate at once"):
        world.route(1, candidate=world.r1)


def test_a_draft_or_another_models_release_is_refused(world: World) -> None:
    draft = Release.objects.create(model=world.model)
    other = release(ServedModel.objects.create(slug="other", team=world.model.team), 1)
    for wrong in (draft, other):
        with pytest.raises(Invalid, match="not a sealed release of sentiment"):
            world.route(1, candidate=wrong)


def test_a_stranger_may_not_route(world: World) -> None:
    stranger = Actor(name="eve", roles=(("vision", Role.RELEASE_MANAGER),))
    with pytest.raises(Refused):
        set_route(actor=stranger, environment=world.environment, model=world.model, stable=world.r1, reason="mine now")


@pytest.mark.django_db(transaction=True)
def test_the_control_plane_hears_of_a_route_when_it_is_committed() -> None:
    world = World()
    parameters = connection.get_connection_params()
    wanted = {key: parameters[key] for key in ("dbname", "user", "password", "host", "port") if key in parameters}
    with psycopg.connect(**wanted, autocommit=True) as session:
        session.execute("LISTEN sluicegate_routes")
        world.route(500)
        notices = list(session.notifies(timeout=60, stop_after=1))
    assert len(notices) == 1


# -- acknowledgement ------------------------------------------------------------------------------------------------


def ack(world: World, route: Route, generation: int | None = None, error: str = "", *, follows: bool = False) -> None:
    said = route.generation if generation is None else generation
    store.write_acks([store.AckRow(world.gateway.pk, route.pk, said, error, timezone.now(), follows)])


def test_a_route_is_acknowledged_when_every_gateway_took_its_generation(world: World) -> None:
    route = world.route(500)
    assert not acknowledged(route).all_acked
    ack(world, route)
    found = acknowledged(route)
    assert found.all_acked
    assert found.acked_at is not None
    assert found.error == ""


def test_the_word_on_an_older_generation_does_not_count(world: World) -> None:
    ack(world, world.route(500))
    assert not acknowledged(world.route(0)).all_acked


def test_one_silent_gateway_is_enough_to_wait(world: World) -> None:
    register_gateway(
        actor=ENGINE, environment=world.environment, name="gateway-2", admin_url="http://127.0.0.1:9902",
        http_url="http://127.0.0.1:8001", grpc_address="127.0.0.1:8001",
    )  # fmt: skip
    Gateway.objects.update(seen_at=timezone.now())
    route = world.route(500)
    ack(world, route)
    assert not acknowledged(route).all_acked
    Gateway.objects.filter(name="gateway-2").update(seen_at=timezone.now() - timedelta(seconds=SEEN_WITHIN_S + 1))
    assert acknowledged(route).all_acked


def test_a_refusal_is_told_with_the_gateways_name(world: World) -> None:
    route = world.route(500)
    ack(world, route, error="no such cluster")
    found = acknowledged(route)
    assert not found.all_acked
    assert found.error == "gateway-1: no such cluster"


def test_a_gateway_that_took_a_route_routes_by_it_whatever_goes_wrong_later(world: World) -> None:
    route = world.route(500)
    ack(world, route, error="no such cluster")
    assert acknowledged(route).taken_by == set()
    ack(world, route)
    assert acknowledged(route).taken_by == {world.gateway.pk}
    ack(world, route, error="no answer from the gateway for 5 s")
    found = acknowledged(route)
    assert (found.all_acked, found.taken_by) == (False, {world.gateway.pk})
    moved = world.route(0)
    ack(world, moved, error="no such cluster")
    assert acknowledged(moved).taken_by == set()


def test_a_gateway_whose_acknowledgement_was_overtaken_by_its_error_routes_by_it_too(world: World) -> None:
    route = world.route(500)
    ack(world, route, error="a port is shut")
    ack(world, route, error="a port is shut", follows=True)
    found = acknowledged(route)
    assert (found.all_acked, found.taken_by) == (False, {world.gateway.pk})


def test_without_any_gateway_nothing_is_acknowledged_and_it_says_why(world: World) -> None:
    Gateway.objects.update(seen_at=None)
    found = acknowledged(world.route(500))
    assert not found.all_acked
    assert "No gateway" in found.error


def test_an_older_word_never_overwrites_a_newer_one(world: World) -> None:
    route = world.route(500)
    ack(world, route, generation=5)
    ack(world, route, generation=4, error="late")
    found = RouteAck.objects.get()
    assert (found.generation, found.error) == (5, "")


def test_a_repeated_word_keeps_its_first_time(world: World) -> None:
    route = world.route(500)
    ack(world, route)
    first = RouteAck.objects.get().acked_at
    ack(world, route)
    assert RouteAck.objects.get().acked_at == first


# -- gateways -------------------------------------------------------------------------------------------------------


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
     ("http_url", "http://127.0.0.1:99999")],
)  # fmt: skip
def test_an_address_without_host_or_port_is_refused(world: World, field: str, value: str) -> None:
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
        static["listeners"][0]["filter_chains"][0]["transport_socket"]["typed_config"]["require_client_certificate"]
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
    with pytest.raises(CommandError, match="--heap-mib"):
        call_command("register_gateway", "small", *about, "--heap-mib", "1", stdout=said)


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


# -- what the control plane reads --------------------------------------------------------------------------------------


def published(world: World) -> store.RoutingTable:
    return store.load().tables[world.environment.slug]


def test_only_serving_servers_of_ready_deployments_are_endpoints(world: World) -> None:
    world.route(500)
    world.server(world.r1, port=9000)
    broken = world.server(world.r2, port=9010, is_serving=False, probed_at=timezone.now())
    (route,) = published(world).models
    assert [one.http_port for one in route.stable.endpoints] == [9000]
    assert route.candidate is not None
    assert route.candidate.endpoints == ()
    known = store.load().known[world.environment.slug]
    assert [one.http_port for one in known[str(world.r2.digest)]] == [9010]
    Server.objects.filter(pk=broken.pk).update(ended_at=timezone.now())
    assert store.load().known[world.environment.slug] == {}


def test_only_the_latest_server_of_a_deployment_counts(world: World) -> None:
    world.route(0)
    old = world.server(world.r1, port=9000)
    Server.objects.create(
        deployment=old.deployment, http_port=9100, grpc_port=9101, metrics_port=9102, pid=2, folder="f", is_serving=True
    )
    (route,) = published(world).models
    assert [one.http_port for one in route.stable.endpoints] == [9100]


def test_a_ready_release_can_be_forced_where_that_is_allowed(world: World) -> None:
    world.route(0)
    world.server(world.r3, port=9030)
    assert published(world).models[0].others == ()
    Environment.objects.filter(pk=world.environment.pk).update(allows_forced_release=True)
    assert [arm.name for arm in published(world).models[0].others] == ["r3"]


def test_the_settings_say_where_the_prober_is(world: World, settings: Any) -> None:
    world.route(0, mirror_bp=2000)
    settings.PROBER_ADDRESS = "127.0.0.1:18010"
    (route,) = published(world).models
    assert (route.mirror_bp, route.prober) == (2000, Prober(Address("127.0.0.1", 18010), mirror_secret()))
    for none in ("", "nonsense"):
        settings.PROBER_ADDRESS = none
        (route,) = published(world).models
        assert (route.is_mirrored, route.prober) == (False, None)
        assert "SLUICEGATE_PROBER_ADDRESS" in admit(published(world), None).problems[-1].message


def test_a_models_own_time_outs_are_used_unless_they_are_nonsense(world: World) -> None:
    world.route(0)
    world.model.objectives = {"timeout_s": 60, "attempt_timeout_s": 20}
    world.model.save()
    assert published(world).models[0].limits == Limits(60, 20)
    world.model.objectives = {"timeout_s": 1}
    world.model.save()
    assert published(world).models[0].limits == Limits(1, 1)
    world.model.objectives = {"attempt_timeout_s": 30}
    world.model.save()
    assert published(world).models[0].limits == Limits(60, 30)  # room for stable after a candidate that hangs
    world.model.objectives = {"attempt_timeout_s": 8}
    world.model.save()
    assert published(world).models[0].limits == Limits(16, 8)
    world.model.objectives = {"attempt_timeout_s": 400}
    world.model.save()
    assert published(world).models[0].limits == Limits(600, 400)
    world.model.objectives = {"attempt_timeout_s": 1}
    world.model.save()
    assert published(world).models[0].limits == Limits(10, 1)
    world.model.objectives = {"timeout_s": 1, "attempt_timeout_s": "x"}
    world.model.save()
    assert published(world).models[0].limits == Limits()


def test_the_fake_gateway_obeys_the_database_and_acknowledges(world: World) -> None:
    world.server(world.r1, port=9000)
    world.server(world.r2, port=9010)
    gateway, route = FakeGateway(), world.route(10_000)
    gateway.obey()
    assert acknowledged(route).all_acked
    assert {one.release for one in gateway.traffic(10)} == {world.r2.digest}
    world.route(0)
    gateway.obey()
    assert {one.release for one in gateway.traffic(10)} == {world.r1.digest}


def test_a_stable_without_servers_is_held_back_and_reported(world: World) -> None:
    world.server(world.r1, port=9000)
    gateway = FakeGateway()
    world.route(0)
    gateway.obey()
    moved = world.route(0, stable=world.r3)
    gateway.obey()
    found = acknowledged(moved)
    assert not found.all_acked
    assert "stable r3 has no server" in found.error
    assert {one.release for one in gateway.traffic(5)} == {world.r1.digest}


def test_one_environments_broken_table_does_not_keep_the_others_from_being_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = {slug: RoutingTable(slug, 0) for slug in ("broken", "sound")}
    monkeypatch.setattr(store, "load", lambda: store.Loaded(tables, {slug: {} for slug in tables}, {}))
    monkeypatch.setattr(clock, "now", timezone.now)  # there is no database here
    compiled = plane_module.compile_table

    def compile_table(table: RoutingTable, last: Snapshot | None) -> Snapshot:
        if table.environment == "broken":
            raise ValueError("no such field")
        return compiled(table, last)

    monkeypatch.setattr(plane_module, "compile_table", compile_table)
    plane = plane_module.ControlPlane()
    assert asyncio.run(plane._refresh())
    assert plane.snapshot("broken") is None
    assert plane.snapshot("sound") is not None


def test_a_route_that_cannot_be_read_leaves_what_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> store.Loaded:
        raise ValueError("a port is no number")

    monkeypatch.setattr(store, "load", load)
    assert not asyncio.run(plane_module.ControlPlane()._refresh())


def test_a_person_writes_with_the_last_leaders_token(world: World) -> None:
    world.route(500, fence=4)
    assert (
        set_route(actor=ENGINE, environment=world.environment, model=world.model, stable=world.r1, reason="Shut.").fence
        == 4
    )


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        ({}, IN_FLIGHT_PER_INSTANCE),
        ({"serving": {"instance_group": [{"kind": "gpu", "count": 2}, {"kind": "cpu", "count": 1}]}}, 3 * IN_FLIGHT_PER_INSTANCE),
        ({"serving": {"instance_group": [{"kind": "gpu", "count": 2}]}, "envelope": {"limits": {"max_concurrency": 5}}}, 5),
        ({"envelope": {"limits": {"max_batch_size": 4}}}, IN_FLIGHT_PER_INSTANCE),
    ],
    ids=["nothing said", "instances", "declared", "other limits"],
)  # fmt: skip
def test_a_releases_bound_comes_from_what_was_sealed(world: World, manifest: dict[str, Any], expected: int) -> None:
    sealed = release(world.model, 9, json.dumps(manifest))
    world.route(0, stable=sealed)
    (route,) = published(world).models
    assert route.stable.max_in_flight == expected
    assert route.candidate is not None and route.candidate.max_in_flight == IN_FLIGHT_PER_INSTANCE


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, (REQUEST_BYTES, False)),
        ({"max_request_bytes": 1000, "streaming": True}, (1000, True)),
        (
            {"max_request_bytes": 2**40, "streaming": False},
            (LARGEST_REQUEST_BYTES, False),
        ),  # sealed before there was a largest
    ],
)
def test_a_releases_largest_request_and_its_streams_come_from_what_was_sealed(
    world: World, limits: dict[str, Any], expected: tuple[int, bool]
) -> None:
    world.route(0, stable=release(world.model, 9, json.dumps({"envelope": {"limits": limits}})))
    (route,) = published(world).models
    assert (route.stable.max_request_bytes, route.stable.has_streams) == expected
    assert route.max_request_bytes == max(expected[0], REQUEST_BYTES)  # the candidate says nothing
    assert not route.has_streams


def test_gateways_that_are_about_share_what_may_be_in_flight(world: World) -> None:
    world.route(0)
    assert published(world).models[0].gateways == 1
    for number, (environment, silent_s) in enumerate(((world.environment, 1), (world.environment, 3600), (None, 1)), 2):
        other = environment or Environment.objects.create(slug="elsewhere", title="Elsewhere")
        Gateway.objects.create(
            environment=other, name=f"gateway-{number}", seen_at=clock.now() - timedelta(seconds=silent_s),
            admin_url="http://127.0.0.1:9902", http_url="http://127.0.0.1:8100", grpc_address="127.0.0.1:8100",
        )  # fmt: skip
    assert published(world).models[0].gateways == 2
    Gateway.objects.update(seen_at=None)
    assert published(world).models[0].gateways == 1
