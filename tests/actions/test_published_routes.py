"""What the control plane reads and publishes."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from ledger.queries import clock
from registry.core.envelope import LARGEST_REQUEST_BYTES
from registry.models import Release
from serving.environments.core.addresses import Address
from serving.models import Environment, Gateway, Replica, Route, Server
from serving.traffic.actions.routes import set_route
from serving.traffic.adapters.mirror_secret import mirror_secret
from serving.traffic.control_plane import plane as plane_module
from serving.traffic.control_plane import store
from serving.traffic.control_plane.server import GatewayIdentity, Wake
from serving.traffic.control_plane.snapshot import Snapshot
from serving.traffic.core.admission import Proof
from serving.traffic.core.asleep import PREPARING_AGAIN_S, Asleep
from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import (
    IN_FLIGHT_PER_INSTANCE,
    REQUEST_BYTES,
    WELL_WITHIN_S,
    Prober,
    RoutingTable,
    TableRefused,
    admit,
)
from serving.traffic.queries.routes import acknowledged
from tests.support.fakes.gateway import FakeGateway
from tests.support.worlds.factories import make_model
from tests.support.worlds.routing_setup import ENGINE, World, release, world  # noqa: F401


def published(world: World) -> store.RoutingTable:
    return store.load().tables[world.environment.slug]


def test_only_serving_servers_of_ready_replicas_are_endpoints(world: World) -> None:
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


def test_only_the_latest_server_of_a_replica_counts(world: World) -> None:
    world.route(0)
    old = world.server(world.r1, port=9000)
    Server.objects.create(
        replica=old.replica, http_port=9100, grpc_port=9101, metrics_port=9102, pid=2, folder="f", is_serving=True
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


def test_a_model_says_whether_its_requests_may_be_asked_twice(world: World) -> None:
    world.route(0)
    for policy, expected in (
        ({}, (True, False)),
        ({"idempotent": False}, (False, False)),
        ({"retry_on_reset": True}, (True, True)),
    ):
        world.model.traffic_policy = policy
        world.model.save()
        (route,) = published(world).models
        assert (route.is_idempotent, route.retries_resets) == expected


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
    monkeypatch.setattr(store, "load", lambda last: store.Loaded(tables, {slug: {} for slug in tables}, {}))
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
    def load(last: store.Loaded | None) -> store.Loaded:
        raise ValueError("a port is no number")

    monkeypatch.setattr(store, "load", load)
    assert not asyncio.run(plane_module.ControlPlane()._refresh())


class Site:
    """Two models, the second of which is asked of a release whose manifest somebody has written into; a control plane that reads them."""

    def __init__(self, world: World) -> None:
        self.world, self.plane = world, plane_module.ControlPlane()
        self.other = make_model("other")
        self.sound, self.broken = release(self.other, 1), release(self.other, 2, "{")
        self.plane.subscribe(GatewayIdentity(world.gateway.pk, "gateway-1", world.environment.slug, ()), Wake())

    def route(self, stable: Release, candidate: Release | None = None, bp: int = 0) -> Route:
        return set_route(
            actor=ENGINE, environment=self.world.environment, model=self.other, stable=stable, candidate=candidate,
            candidate_bp=bp, reason="a test",
        )  # fmt: skip

    def read(self) -> RoutingTable:
        self.plane._publish_all(self.plane._load())
        snapshot = self.plane.snapshot(self.world.environment.slug)
        assert snapshot is not None
        return snapshot.table

    def repair(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute("ALTER TABLE registry_release DISABLE TRIGGER USER")
            cursor.execute("UPDATE registry_release SET manifest = '{}' WHERE id = %s", [self.broken.pk])
            cursor.execute("ALTER TABLE registry_release ENABLE TRIGGER USER")


def test_a_model_whose_manifest_cannot_be_read_keeps_its_route_and_no_other_model_waits(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(world)
    world.route(0)
    before = site.route(site.sound).generation
    site.read()
    refused = site.route(site.sound, site.broken, 1000)
    world.route(500)
    for _ in range(2):
        table = site.read()
        assert table.models[0].candidate is None and table.models[0].generation == before
        assert table.models[1].candidate_bp == 500 and table.unknown == frozenset()
    ((_, ack),) = [(key, ack) for key, ack in site.plane._acks.items() if key[1] == refused.pk]
    assert ack.generation == refused.generation and "the manifest of r2 cannot be read" in ack.error
    assert sum("the manifest of r2" in one.message for one in caplog.records) == 1  # and not with each reading
    site.repair()
    assert site.read().models[0].candidate_bp == 1000  # though nothing else is said of it


def test_a_control_plane_that_begins_with_such_a_model_takes_nothing_away_of_it(world: World) -> None:
    site = Site(world)
    world.route(500)
    site.route(site.sound, site.broken, 1000)
    table = site.read()
    assert [one.model for one in table.models] == ["sentiment"] and table.unknown == {"other"}
    site.route(site.sound, site.broken, 0)  # it is taken back, for which nothing of it need be read
    (back, _) = site.read().models
    assert (back.model, back.candidate, back.candidate_bp) == ("other", None, 0)
    site.repair()
    assert site.read().models[0].candidate is not None


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


@pytest.mark.parametrize(("declared", "expected"), [(None, 11), (64, 11), (9, 9)])
def test_what_was_proven_bounds_a_release_and_never_above_what_it_declares(
    world: World, declared: int | None, expected: int
) -> None:
    limits = {"limits": {"max_concurrency": declared}} if declared else {}
    r4 = release(world.model, 4, json.dumps({"envelope": limits}))
    world.route(0, candidate=r4, proofs={str(r4.pk): Proof(40.0, 0.25)})
    (route,) = published(world).models
    assert route.candidate is not None and route.candidate.max_in_flight == expected
    assert route.candidate.well_within_s == (0.25 if expected == 11 else WELL_WITHIN_S)
    assert route.stable.max_in_flight == IN_FLIGHT_PER_INSTANCE and route.stable.well_within_s == WELL_WITHIN_S
    world.route(0, stable=r4, candidate=None)
    assert published(world).models[0].stable.max_in_flight == expected


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


@pytest.mark.parametrize(("serving", "expected"), [({}, 0), ({"max_batch_size": 0}, 0), ({"max_batch_size": 8}, 8)])
def test_a_releases_largest_batch_comes_from_what_was_sealed(
    world: World, serving: dict[str, Any], expected: int
) -> None:
    world.route(0, stable=release(world.model, 9, json.dumps({"serving": serving})))
    (route,) = published(world).models
    assert route.stable.max_batch == expected and route.max_batch == 0  # the candidate says nothing


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


async def _ends_with_a_notice(turns: int) -> bool:
    """Whether following ends when it is cancelled so many turns of the loop after a notice."""
    plane = plane_module.ControlPlane()
    plane._refresh = lambda: asyncio.sleep(0, True)  # type: ignore[method-assign]
    follows = asyncio.create_task(plane._follow())
    await asyncio.sleep(0.01)
    plane.notice.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    follows.cancel()
    await asyncio.wait({follows}, timeout=1.0)
    is_over = follows.done()
    follows.cancel()
    return is_over


@pytest.mark.parametrize("turns", range(4))
def test_the_control_plane_ends_when_it_is_told_to_among_notices(turns: int) -> None:
    assert asyncio.run(_ends_with_a_notice(turns))


async def _readings(notices: int, wake: Wake | None, *, is_heeded_after: int | None = None) -> list[int]:
    """At which of so many notices, a millisecond apart, the database was read. Each reading gives a gateway's stream something to look at:
    `wake`, which it does at once, or only after so many notices.
    """
    plane, read, told = plane_module.ControlPlane(poll_s=3600), list[int](), 0

    async def refresh() -> bool:
        read.append(told)
        if wake is not None:
            wake.publish()
        return True

    plane._refresh = refresh  # type: ignore[method-assign]
    if wake is not None:
        plane.subscribe(plane_module.GatewayIdentity(1, "gw-1", "production", ()), wake)
    follows = asyncio.create_task(plane._follow())
    for told in range(1, notices + 1):
        plane.notice.set()
        await asyncio.sleep(0.001)
        if wake is not None and is_heeded_after is not None and told >= is_heeded_after:
            wake.has_snapshot = False
    while plane.notice.is_set():
        await asyncio.sleep(0.001)
    follows.cancel()
    return read


def test_changes_that_come_faster_than_gateways_can_be_told_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane_module, "TAKEN_UP_WITHIN_S", 60.0)
    read = asyncio.run(_readings(30, Wake(), is_heeded_after=20))
    assert read[0] == 1 and read[1] >= 20


def test_a_frozen_gateway_keeps_no_other_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane_module, "TAKEN_UP_WITHIN_S", 60.0)
    wake = Wake()
    wake.sending_since = 0.0
    assert asyncio.run(_readings(20, wake)) == list(range(1, 21))


def test_a_stream_that_never_looks_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane_module, "TAKEN_UP_WITHIN_S", 0.01)
    assert len(asyncio.run(_readings(30, Wake()))) > 1


def test_each_change_is_told_at_once_where_nothing_keeps_the_gateways() -> None:
    assert asyncio.run(_readings(20, None)) == list(range(1, 21))


def test_a_model_whose_first_release_is_being_loaded_is_known_without_a_route(world: World) -> None:
    assert published(world).models == ()
    replica = world.server(world.r1, is_serving=False).replica
    (route,) = published(world).models
    assert (route.model, route.stable.name, route.is_preparing, route.is_ready) == ("sentiment", "r1", True, False)
    assert not published(world).has_routes
    for state, asleep in {
        "failed": Asleep(None, is_preparing=True),
        "ready": Asleep(PREPARING_AGAIN_S, is_preparing=True, is_loaded=True),
        "fetching": Asleep(PREPARING_AGAIN_S, is_preparing=True),
    }.items():
        Replica.objects.filter(pk=replica.pk).update(state=state)
        assert [one.asleep for one in published(world).models] == [asleep]
    Replica.objects.filter(pk=replica.pk).update(is_wanted=False)
    assert published(world).models == ()  # the rollout was cancelled
    Replica.objects.filter(pk=replica.pk).update(is_wanted=True)
    world.route(0, candidate=None)
    assert [one.is_preparing for one in published(world).models] == [False]


def test_what_a_release_that_is_being_prepared_declares_holds_for_its_callers(
    world: World, django_assert_num_queries: Any
) -> None:
    document = {
        "runtime": {"server": "llamacpp"},
        "serving": {"interface": "chat"},
        "envelope": {"limits": {"streaming": True, "max_request_bytes": LARGEST_REQUEST_BYTES}},
    }
    world.server(release(world.model, 4, json.dumps(document)), is_serving=False)
    loaded = store.load()
    (arm,) = (one.stable for one in loaded.tables[world.environment.slug].models)
    assert (arm.kind, arm.has_streams, arm.max_request_bytes) == ("llamacpp", True, LARGEST_REQUEST_BYTES)
    with django_assert_num_queries(1):
        assert store.load(loaded).tables == loaded.tables


def test_what_is_being_prepared_is_no_route_that_was_lost(world: World) -> None:
    """Gateways keep what they have if the database has lost its routes, though replicas are left in it."""
    world.route(0)
    last = published(world)
    world.server(world.r1, is_serving=False)
    Route.objects.all().delete()
    lost = published(world)
    assert [one.is_preparing for one in lost.models] == [True]
    with pytest.raises(TableRefused, match="no routes at generation"):
        admit(lost, last)
