"""Routes: who may write them, what is refused, and when every gateway has taken one."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from accounts.core.access import Actor, Role, Verb
from ledger.core.errors import Invalid, Refused, Stale
from registry.models import Release, ServedModel
from serving.models import Gateway, Route, RouteAck
from serving.traffic.actions import routes as routing
from serving.traffic.actions.gateways import register_gateway
from serving.traffic.actions.routes import set_route
from serving.traffic.control_plane import store
from serving.traffic.core.admission import Proof
from serving.traffic.core.gateway_standing import SEEN_WITHIN_S
from serving.traffic.queries.routes import acknowledged
from tests.support.worlds.factories import make_model, make_release
from tests.support.worlds.routing_setup import ENGINE, World, events, release, world  # noqa: F401


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


def test_what_was_proven_when_a_release_came_holds_at_each_weight_and_on_the_way_back(world: World) -> None:
    early, late = Proof(40.0, 0.25, "sha256:early"), Proof(400.0, 0.25, "sha256:late")
    r1, r2 = str(world.r1.pk), str(world.r2.pk)
    assert world.route(0, proofs={r1: None, r2: early}).proven == {r1: None, r2: early.as_json()}
    assert world.route(500, proofs={r1: late, r2: late}).proven == {r1: None, r2: early.as_json()}
    assert world.route(0).proven[r2] == early.as_json()  # shut in a hurry: nobody looked
    promoted = world.route(0, stable=world.r2, candidate=None)
    assert promoted.proven == {r1: None, r2: early.as_json()}
    undone = world.route(0, stable=world.r1, candidate=None)
    assert undone.proven == {r1: None, r2: early.as_json()}
    assert world.route(0, candidate=world.r3, proofs={str(world.r3.pk): late}).proven == {
        r1: None, str(world.r3.pk): late.as_json()
    }  # fmt: skip


def test_mirroring_is_part_of_the_route_and_ends_when_it_is_not_asked_for(world: World) -> None:
    assert world.route(0, mirror_bp=2000).generation == 1
    assert world.route(0, mirror_bp=2000).generation == 1
    ended = world.route(0)
    assert (ended.generation, ended.mirror_bp) == (2, 0)
    begun, over = events("route.set")
    assert begun.facts["after"] == "r2 0 %, r1 100 %, 20 % mirrored"
    assert (begun.facts["mirror_bp"], over.facts["mirror_bp"]) == (2000, 0)


def test_words_are_written_in_one_order_whatever_the_plan(world: World) -> None:
    """Two control planes that write of the same routes would else each hold what the other waits for."""
    gateways, routes = [world.gateway], [world.route(0)]
    for number in range(2, 5):
        model = make_model()
        routes.append(
            set_route(
                actor=ENGINE, environment=world.environment, model=model, stable=make_release(model), reason="a test"
            )
        )
        gateways.append(
            Gateway.objects.create(
                environment=world.environment, name=f"gateway-{number}", admin_url="http://127.0.0.1:1",
                http_url="http://127.0.0.1:2", grpc_address="127.0.0.1:3",
            )
        )  # fmt: skip
    rows = [store.AckRow(one.pk, route.pk, 1, "", timezone.now()) for route in routes for one in gateways]
    for left_out in ("mergejoin", "nestloop", "hashjoin"):
        RouteAck.objects.all().delete()
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL enable_{left_out} = off")
            store.write_acks(rows)
            cursor.execute("SELECT gateway_id, route_id FROM serving_routeack ORDER BY id")
            written = cursor.fetchall()
        assert len(written) == 16 and written == sorted(written)


@pytest.mark.parametrize(("bp", "more"), [(-1, {}), (10_001, {}), (1, {"candidate": None})])
def test_a_mirrored_share_that_makes_no_sense_is_refused(world: World, bp: int, more: dict[str, object]) -> None:
    with pytest.raises(Invalid) as caught:
        world.route(0, mirror_bp=bp, **more)
    assert caught.value.code == "route_mirror"
    assert not Route.objects.exists()


def test_to_mirror_more_is_to_open_and_to_mirror_less_is_to_shut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Verb] = []
    monkeypatch.setattr(routing, "require", lambda actor, verb, team, model: asked.append(verb))
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
    Gateway.objects.update(seen_at=timezone.now() + timedelta(hours=1))
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
