"""A reading that takes over what has not changed is what a reading from nothing is."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from ledger.queries import clock
from serving.environments.core.lifecycle import ReplicaState
from serving.models import Environment, Gateway, Replica, Route, Server
from serving.traffic.actions.routes import set_route
from serving.traffic.control_plane import store
from tests.support.worlds.factories import make_environment, make_model, make_release, make_replica, make_server
from tests.support.worlds.routing_setup import ENGINE

SEEDS, CHANGES = 12, 25


class Site:
    """Some models, each with three releases, in two environments that have gateways, and whatever happens to them."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.environments = [
            make_environment(slug, allows_forced_release=slug == "canary") for slug in ("canary", "production")
        ]
        self.models = [make_model(f"model-{name}") for name in "abc"]
        self.releases = {model.pk: [make_release(model) for _ in range(3)] for model in self.models}
        self.ports = iter(range(20_000, 30_000, 2))
        for model in self.models:
            self.route(model)
            self.server(model)

    def route(self, model: Any = None) -> None:
        model = model or self.draw.choice(self.models)
        stable, candidate = self.draw.sample(self.releases[model.pk], 2)
        has_candidate = self.draw.random() < 0.7
        set_route(
            actor=ENGINE, environment=self.draw.choice(self.environments), model=model, stable=stable, reason="a test",
            candidate=candidate if has_candidate else None,
            candidate_bp=self.draw.choice([0, 500, 10_000]) if has_candidate else 0,
            mirror_bp=self.draw.choice([0, 1000]) if has_candidate else 0,
        )  # fmt: skip

    def server(self, model: Any = None) -> None:
        """A new one, of a replica that is there or a new one."""
        model = model or self.draw.choice(self.models)
        release = self.draw.choice(self.releases[model.pk])
        there = list(Replica.objects.filter(release=release))
        replica = self.draw.choice(there) if there and self.draw.random() < 0.5 else None
        if replica is None:
            ordinal = Replica.objects.count()
            replica = make_replica(release, self.draw.choice(self.environments), state="ready", ordinal=ordinal)
        port = next(self.ports)
        make_server(replica, http_port=port, grpc_port=port + 1, is_serving=self.draw.random() < 0.7)

    def one_of(self, kind: type[Server | Replica | Gateway | Route], **values: Any) -> None:
        keys = list(kind.objects.values_list("pk", flat=True))
        if keys:
            kind.objects.filter(pk=self.draw.choice(keys)).update(**values)

    def server_changes(self) -> None:
        now = timezone.now()
        changes = (
            {"is_serving": True, "probed_at": now},
            {"is_serving": False},
            {"ended_at": now},
            {"host": "10.0.0.7"},
        )
        self.one_of(Server, **self.draw.choice(changes))

    def replica_moves(self) -> None:
        state = self.draw.choice([ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.GONE])
        self.one_of(Replica, state=state, gone_at=timezone.now() if state == ReplicaState.GONE else None)

    def policy(self) -> None:
        model = self.draw.choice(self.models)
        model.objectives = self.draw.choice([{}, {"timeout_s": 3}, {"slow": {"threshold_ms": 20}}, {"timeout_s": "x"}])
        model.traffic_policy = self.draw.choice([{}, {"idempotent": False}, {"retry_on_reset": True}])
        model.save()

    def environment(self) -> None:
        where = self.draw.choice(self.environments)
        values = self.draw.choice(
            [{"is_routed": self.draw.random() < 0.8}, {"allows_forced_release": self.draw.random() < 0.5}]
        )
        Environment.objects.filter(pk=where.pk).update(**values)

    def gateway(self) -> None:
        what = self.draw.random()
        if what < 0.4:
            Gateway.objects.create(
                environment=self.draw.choice(self.environments), name=f"gateway-{self.draw.random()}", seen_at=clock.now(),
                admin_url="http://127.0.0.1:9902", http_url="http://127.0.0.1:8100", grpc_address="127.0.0.1:8100",
            )  # fmt: skip
        elif what < 0.6:
            Gateway.objects.filter(pk__in=Gateway.objects.values("pk")[:1]).delete()
        else:
            silent = self.draw.choice([timedelta(0), timedelta(hours=1)])
            self.one_of(Gateway, seen_at=clock.now() - silent, drained_at=self.draw.choice([None, timezone.now()]))

    def route_goes(self) -> None:
        Route.objects.filter(pk__in=Route.objects.order_by("?").values("pk")[:1]).delete()

    def nothing(self) -> None:
        pass


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.django_db
def test_what_is_taken_over_is_what_would_be_made_again(seed: int, settings: Any) -> None:
    draw = random.Random(seed)
    site, last = Site(draw), store.load()
    often: list[Callable[[], None]] = [site.route, site.server, site.server_changes, site.replica_moves, site.policy]
    for _ in range(CHANGES):
        draw.choice([*often, *often, site.environment, site.gateway, site.route_goes, site.nothing])()
        if draw.random() < 0.1:
            settings.PROBER_ADDRESS = draw.choice(["", "127.0.0.1:18010"])
        last, afresh = store.load(last), store.load()
        assert (last.tables, last.known, last.gateways) == (afresh.tables, afresh.known, afresh.gateways)
        assert list(last.made.values()) == list(afresh.made.values())


@pytest.mark.django_db
def test_only_what_changed_is_made_and_read_in_one_statement(django_assert_num_queries: Any) -> None:
    site = Site(random.Random(1))
    first = store.load()
    with django_assert_num_queries(1):
        again = store.load(first)
    assert {id(one) for one in again.made.values()} == {id(one) for one in first.made.values()}
    last = {route.route_id: route for table in again.tables.values() for route in table.models}
    changed = Route.objects.order_by("pk")[0]
    other = next(one for one in site.releases[changed.model_id] if one.pk != changed.stable_id)
    set_route(
        actor=ENGINE, environment=changed.environment, model=changed.model, stable=changed.stable, candidate=other,
        candidate_bp=77, reason="a test",
    )  # fmt: skip
    then = store.load(again)
    kept = {route.route_id: route is last[route.route_id] for table in then.tables.values() for route in table.models}
    assert len(kept) > 1 and [pk for pk, is_kept in kept.items() if not is_kept] == [changed.pk]
