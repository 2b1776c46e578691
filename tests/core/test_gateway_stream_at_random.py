"""Random tables, answers, refusals, silences, reconnections: a gateway ends with the table, and neither acknowledges a
route nor is said to follow before it has it."""

from __future__ import annotations

import dataclasses
import os
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pytest
from envoy.service.discovery.v3 import discovery_pb2

from serving.traffic.control_plane.protos import CLUSTER, ENDPOINTS, LISTENER, SCOPE
from serving.traffic.control_plane.received import StreamAck
from serving.traffic.control_plane.snapshot import MOST_STEPS, Snapshot, compile_listeners, compile_table
from serving.traffic.control_plane.stream import GatewayStream
from serving.traffic.core.routes import Arm, ModelRoute, RoutingTable, ServerAddress

Response, Request = discovery_pb2.DeltaDiscoveryResponse, discovery_pb2.DeltaDiscoveryRequest
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
MODELS = [f"model-{i}" for i in range(6)]
#: More with SLUICEGATE_TEST_SEEDS, for a night.
SEEDS = int(os.environ.get("SLUICEGATE_TEST_SEEDS", "15"))


def arm(number: int, port: int) -> Arm:
    return Arm(f"r{number}", f"sha256:{number:012x}{0:052}", (ServerAddress("127.0.0.1", port, port + 1),))


class World:
    """The table as it changes, and what each version of a model's routes names."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._generation = chance, 0
        self.current: Snapshot | None = None
        self.every: list[Snapshot] = []
        self.named: dict[str, frozenset[str]] = {}  # by the version of a scope, the clusters in it
        self.of: dict[tuple[int, int], tuple[str, str]] = {}  # (route, generation) → the scope's name and version
        self._routes: dict[str, ModelRoute] = {}
        self._earlier: dict[str, list[ModelRoute]] = defaultdict(list)
        self._next = 0
        for _ in range(3):
            self.change()

    @property
    def number(self) -> int:
        """Of the newest of `every`."""
        return len(self.every) - 1

    def change(self) -> Snapshot:
        chance, name = self._chance, self._chance.choice(MODELS)
        self._generation += 1
        before, drawn = self._routes.get(name), chance.random()
        earlier = self._earlier[name]
        if before is not None:
            earlier.append(before)
        if drawn < 0.1 and before is not None and len(self._routes) > 1:
            del self._routes[name]
        elif drawn < 0.25 and earlier:  # as it was, with the clusters that it had
            self._routes[name] = dataclasses.replace(chance.choice(earlier), generation=self._generation)
        elif before is None or chance.random() < 0.3:
            self._next += 2
            stable = before.stable if before else arm(self._next, 9000 + 10 * self._next)
            candidate = arm(self._next + 1, 9005 + 10 * self._next) if chance.random() < 0.7 else None
            bp = chance.randrange(0, 10_001) if candidate else 0
            self._routes[name] = ModelRoute(MODELS.index(name), name, self._generation, stable, candidate, bp)
        elif chance.random() < 0.3:  # a replica elsewhere
            port = chance.randrange(20_000, 60_000)
            moved = dataclasses.replace(before.stable, endpoints=(ServerAddress("127.0.0.1", port, port + 1),))
            self._routes[name] = dataclasses.replace(before, stable=moved)
        else:
            bp = chance.randrange(0, 10_001) if before.candidate else 0
            self._routes[name] = dataclasses.replace(before, candidate_bp=bp, generation=self._generation)
        table = RoutingTable("production", self._generation, "", tuple(self._routes.values()))
        self.current = compile_table(table, self.current)
        self.every.append(self.current)
        for host, model in self.current.models.items():
            self.named[model.scope.version] = frozenset(model.clusters)
            self.of[model.route.route_id, model.route.generation] = (host, model.scope.version)
        return self.current


class Gateway:
    """An Envoy: what it has, and what it was sent and has not answered yet."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world, self._chance = world, chance
        self.held: dict[str, dict[str, str]] = defaultdict(dict)
        self.words: dict[int, StreamAck] = {}
        self.connect(0.0)

    def connect(self, now: float) -> None:
        self.stream = GatewayStream(compile_listeners((("127.0.0.1", 8000),)), now=now)
        self.sent: list[Response] = []
        self.fresh: dict[str, str] = {}  # scopes that were taken on this stream
        self._asked: set[str] = set()
        self.words.clear()
        self.follows, self._now = 0, now
        self._ask(CLUSTER)
        if names := tuple(name for name in self.held[CLUSTER] if "_or_" not in name):
            self._maybe_look()
            self._ask(ENDPOINTS, names)
        if self.held[LISTENER]:
            self._maybe_look()
            self._ask(LISTENER)
            self._maybe_look()
            self._ask(SCOPE)

    def _maybe_look(self) -> None:
        """A stream may have a turn between two words that come one after the other; and answers to what it sends then, too."""
        while self._world.current is not None and self._chance.random() < 0.3:
            self.look(self._now)
            if self.sent and self._chance.random() < 0.7:
                self.answer(self.sent[0])

    def _ask(self, type_url: str, names: tuple[str, ...] = (), gone: tuple[str, ...] = ()) -> None:
        request = Request(type_url=type_url, resource_names_subscribe=names, resource_names_unsubscribe=gone)
        if type_url not in self._asked:
            request.initial_resource_versions.update(self.held[type_url])
        self._asked.add(type_url)
        self.stream.receive(request)

    def look(self, now: float) -> None:
        snapshot, self._now = self._world.current, now
        assert snapshot is not None
        self.sent += self.stream.due(snapshot, now)
        if self.sent and self._chance.random() < 0.2:
            self.answer(self.sent[0])  # a stream hears while it sends
        for word in self.stream.acks(snapshot):
            self.words[word.route_id] = word
            if not word.error:
                host, version = self._world.of[word.route_id, word.generation]
                assert self.fresh.get(host) == version, "acknowledged before it was taken"
        if (at := self.stream.follows_at(snapshot, BEGAN + timedelta(seconds=self._world.number))) is not None:
            self.follows = int((at - BEGAN).total_seconds())
            self._holds_nothing_older()

    def _holds_nothing_older(self) -> None:
        """Of models that it tells no error of: its routes, and the servers that they lead to, are those of a time since `follows`."""
        since = self._world.every[self.follows :]
        for name, version in self.held[SCOPE].items():
            at = [one.models[name] for one in since if name in one.models]
            word = self.words.get(at[-1].route.route_id) if at else None
            if name == since[-1].unknown.name or (word is not None and word.error):
                continue
            assert version in {model.scope.version for model in at}, "said to follow before it does"
            for cluster in self._world.named[version] & self.held[ENDPOINTS].keys():
                known = {one.endpoints[cluster].version for one in since if cluster in one.endpoints}
                assert self.held[ENDPOINTS][cluster] in known, "said to follow before it does"

    def answer(self, response: Response, *, refuses: bool = False) -> None:
        self.sent.remove(response)
        url, held = response.type_url, self.held[response.type_url]
        bad: set[str] = set()
        if refuses and response.resources and url in (SCOPE, CLUSTER):  # what Envoy does refuse now and then
            bad = {self._chance.choice([one.name for one in response.resources])}
            if url == SCOPE:
                bad = {one.name for one in response.resources}
        words = Request(type_url=url, response_nonce=response.nonce)
        if bad:
            words.error_detail.message = f"bad: {' '.join(sorted(bad))}"
        taken = {one.name: one.version for one in response.resources if one.name not in bad}
        if url == CLUSTER:
            used = {name for version in self.held[SCOPE].values() for name in self._world.named.get(version, ())}
            assert not used & set(response.removed_resources), "a route still names it"
        if url == SCOPE:
            for version in taken.values():
                missing = self._world.named.get(version, frozenset()) - self.held[CLUSTER].keys()
                assert not missing, f"a route names {missing}, which it does not have"
            self.fresh.update(taken)
        changed = [name for name, version in taken.items() if held.get(name) != version]
        held.update(taken)
        for name in response.removed_resources:
            held.pop(name, None)
            self.fresh.pop(name, None)
        self.stream.receive(words)
        if url == CLUSTER:
            gone = tuple(name for name in response.removed_resources if "_or_" not in name)
            for name in gone:
                self.held[ENDPOINTS].pop(name, None)
            new = tuple(name for name in changed if "_or_" not in name)
            if self._chance.random() < 0.2:
                self.look(
                    self._now
                )  # a stream may hear of the cluster first, and then that its endpoints are asked for
            if new or gone:
                self._ask(ENDPOINTS, new, gone)
            if LISTENER not in self._asked:
                self._ask(LISTENER)
        if url == LISTENER and taken and SCOPE not in self._asked:
            self._ask(SCOPE)


@pytest.mark.parametrize("refusals", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_gateway_ends_with_the_table_whatever_came_between(seed: int, refusals: float) -> None:
    """What it refused it may go without: then that is its word on the route."""
    chance = random.Random(seed)
    world, now = World(chance), 0.0
    gateway = Gateway(world, chance)
    for _ in range(chance.randrange(20, 200)):
        drawn = chance.random()
        if drawn < 0.25:
            world.change()
        elif drawn < 0.27:
            gateway.connect(now)
        elif drawn < 0.45:
            now += chance.choice([0.01, 0.5, 2.0, 6.0, 30.0])
        elif gateway.sent and drawn < 0.9:
            one = gateway.sent[0]
            gateway.answer(one, refuses=chance.random() < refusals)
        gateway.look(now)
    for _ in range(200):
        while gateway.sent:
            gateway.answer(gateway.sent[0])
            gateway.look(now)
        now += 2.0
        gateway.look(now)
    current = world.current
    assert current is not None
    there = {model.route.route_id for model in current.models.values()}
    refused = {key for key, one in gateway.words.items() if one.error and key in there}
    assert refusals or not refused
    for host, model in current.models.items():
        key, is_whole = model.route.route_id, model.route.route_id not in refused
        assert gateway.words[key].generation == model.route.generation
        if is_whole:
            assert gateway.held[SCOPE][host] == model.scope.version and gateway.words[key] == StreamAck(
                key, model.route.generation
            )
            assert {gateway.held[CLUSTER][name] for name in model.clusters} == {
                one.version for one in model.clusters.values()
            }
            assert all(gateway.held[ENDPOINTS][name] == one.version for name, one in model.endpoints.items())
    assert gateway.follows == world.number
    if not refusals:
        assert gateway.held[CLUSTER].keys() == current.clusters.keys(), "what no route names goes in the end"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_snapshot_is_as_compiled_from_nothing_and_tells_what_changed_since_those_before_it(seed: int) -> None:
    world = World(random.Random(seed))
    every = [world.change() for _ in range(MOST_STEPS + 10)]
    now = every[-1]
    afresh = compile_table(now.table)
    for what in ("models", "clusters", "endpoints", "owners"):
        assert dict(getattr(now, what)) == dict(getattr(afresh, what))
    assert [one.since(now) for one in every[:-1]] == [None] * (len(every) - 1)
    for age, last in enumerate(reversed(every)):
        step = now.since(last)
        if step is None:
            assert age > MOST_STEPS
            continue
        assert age <= MOST_STEPS
        assert (
            {name for name, one in now.models.items() if last.models.get(name) is not one}
            <= step.models
            <= now.models.keys()
        )
        assert last.models.keys() - now.models.keys() <= step.lost_models
        assert last.clusters.keys() - now.clusters.keys() <= step.lost_clusters
        assert age or not (step.models or step.lost_models or step.lost_clusters)
