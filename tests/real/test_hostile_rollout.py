"""Rollouts by the engine on real servers behind a real gateway, while callers send what harms, and what is malformed."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import local

import pytest
from django.utils import timezone

from accounts.core.access import Actor
from registry.models import Release
from rollouts import actions
from rollouts.core.rules import all_failing, mostly_failing
from rollouts.engine.loop import Engine
from rollouts.engine.timings import EngineTimings
from rollouts.models import DecisionRecord, Rollout
from serving.models import Gateway, Route
from serving.traffic.actions.routes import set_route
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.control_plane import store
from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import admit
from tests.support.rigs.gateway_rig import MODEL, Rig, rig, wait_until
from tests.support.rigs.hostile_rig import Servers, Tritons, told, tritons
from tests.support.servers.hostile import GOOD, OVER_HTTP, OverHttp, message, over_grpc, packed, raw, tensor
from tests.support.worlds.factories import (
    make_admin,
    make_environment,
    make_model,
    make_release,
    make_replica,
    make_server,
)

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.real("envoy", "triton"),
    pytest.mark.timeout(300),
]
OBJECTIVES = {"errors_max_frac": 0.005, "slow": {"threshold_ms": 2000, "max_frac": 0.05}}
POLICY = {
    "preset": "demo",
    "second_look": {"looks": 1},
    "cold_s": 0,
    "steps": [{"weight_pct": weight, "min_s": 0, "min_samples": 400, "deadline_s": 600} for weight in (25, 50)],
    "bake": {"min_s": 0, "min_samples": 400, "deadline_s": 600},
    "no_data_s": 600,
    "instant_window_s": 0,
}
#: What the gateway refuses, and what Triton itself finds wrong, one after the other.
MALFORMED = [
    OVER_HTTP["88 bytes with a huge shape"].body,
    b"hello",
    OVER_HTTP["84 kB of nested data"].body,
    b"{}",
    GOOD[:-5],
    tensor(shape=[1, -4]),
    tensor(data=[1, 2]),
    OVER_HTTP["a product that overflows to nothing"].body,
]
#: As many as the gateway lets be in flight over one protocol.
WORKERS = 4


class Story:
    """One model with r1 as stable and r2 as the candidate, both real, and an engine that reads what the gateway counted."""

    def __init__(self, world: Servers) -> None:
        self.world, self.last = world, None
        self.admin, self.model = make_admin(), make_model(MODEL, objectives=OBJECTIVES, rollout_policy=POLICY)
        self.environment = make_environment("production", needs_passed_report=False)
        Gateway.objects.create(
            environment=self.environment, name="gateway-1", admin_url=world.parts.envoy.admin_url,
            http_url=f"http://127.0.0.1:{world.parts.envoy.port}", grpc_address=f"127.0.0.1:{world.parts.envoy.port}",
        )  # fmt: skip
        stable, self.candidate = self.serve("r1"), self.serve("r2")
        set_route(
            actor=Actor.system("test"), environment=self.environment, model=self.model, stable=stable, reason="It serves."
        )  # fmt: skip
        self.engine = Engine(EnvoyCounters(), tick_s=0.05, lease_s=60, timings=EngineTimings(zero_poll_for_s=0.0))
        self.obey()
        self.rollout = actions.start_rollout(actor=self.admin, candidate=self.candidate, environment=self.environment)
        self.statuses: Counter[tuple[bool, int]] = Counter()
        self._opened: list[HTTPConnection] = []
        self._chance, self._lines, self._wrong = random.Random(4), local(), itertools.cycle(MALFORMED)

    def serve(self, name: str) -> Release:
        release = make_release(self.model)
        replica = make_replica(release, self.environment, state="ready")
        one = self.world.running[name]
        make_server(
            replica, http_port=one.http_port, grpc_port=one.grpc_port, metrics_port=one.metrics_port, pid=one.pid,
            probed_at=timezone.now(),
        )  # fmt: skip
        return release

    def obey(self) -> None:
        """The gateway takes what was written, and its word is written down, as the control plane does."""
        loaded = store.load()
        table = admit(loaded.tables["production"], self.last, loaded.known["production"]).table
        if table == self.last:
            return
        self.last, parts, gateway = table, self.world.parts, Gateway.objects.get()
        parts.loop.loop.call_soon_threadsafe(parts.plane.publish, table)
        (route,) = table.models
        wait_until(lambda: parts.acked(route.generation), f"generation {route.generation}")
        wait_until(parts.envoy.is_open, "the gateway's port")
        store.write_acks([store.AckRow(gateway.pk, route.route_id, route.generation, "", timezone.now())])

    def turn(self, requests: int, malformed_frac: float) -> str:
        """Users' requests, then one tick of the engine, then the gateway takes what was written."""
        bodies = [next(self._wrong) if self._chance.random() < malformed_frac else GOOD for _ in range(requests)]
        with ThreadPoolExecutor(WORKERS) as pool:
            self.statuses.update(pool.map(self._ask, bodies))
        while self._opened:
            self._opened.pop().close()
        store.write_seen([Gateway.objects.get().pk], timezone.now())
        self.world.counters()  # so that what was asked has been counted
        self.engine.step()
        self.obey()
        self.rollout.refresh_from_db()
        return str(self.rollout.state)

    def _ask(self, body: bytes) -> tuple[bool, int]:
        """(whether it was good, the status)."""
        line = getattr(self._lines, "line", None)
        if line is None:
            line = self._lines.line = HTTPConnection("127.0.0.1", self.world.parts.envoy.port, timeout=60)
            self._opened.append(line)
        line.request("POST", f"/v2/models/{MODEL}/infer", body)
        answer = line.getresponse()
        answer.read()
        return body is GOOD, answer.status

    def until(self, state: str, *, malformed_frac: float = 0.0, turns: int = 60) -> Rollout:
        for _ in range(turns):
            if self.turn(400, malformed_frac) == state:
                return self.rollout
        said = [(d.action, d.code, d.reason) for d in DecisionRecord.objects.order_by("pk")]
        raise AssertionError(f"still {self.rollout.state}, not {state}: {self.rollout.reason} {said}")

    def codes(self) -> list[str]:
        return list(DecisionRecord.objects.order_by("pk").values_list("code", flat=True))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tritons]:
    with tritons(tmp_path_factory.mktemp("tritons")) as found:
        yield found


@pytest.fixture
def world(both: Tritons, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """Every test has a gateway of its own, and the servers of all."""
    for rule in (all_failing, mostly_failing):
        monkeypatch.setattr(rule, "FAILING_OVER_S", 0.0)
    with rig(tmp_path) as parts:
        yield both.with_gateway(parts)


def test_hostile_requests_at_half_the_traffic_take_no_release_back_and_kill_nobody(world: Servers) -> None:
    story = Story(world)
    before = world.processes()
    while Route.objects.get().candidate_bp != 5000:
        story.turn(400, 0.0)
    for one in OVER_HTTP.values():
        status, head = world.http(one)
        assert status in one.told or head.get("grpc-status") == "3"
    with world.parts.envoy.channel() as channel:
        assert {told(channel, one).name for one in over_grpc(MODEL).values()} == {
            "INVALID_ARGUMENT",
            "RESOURCE_EXHAUSTED",
        }
    story.until("promoted")
    assert world.processes() == before
    assert {status for _, status in story.statuses} == {200}
    assert not DecisionRecord.objects.filter(action__in=["roll_back", "pause"]).exists()
    assert Route.objects.get().stable_id == story.candidate.pk


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_what_was_in_flight_when_a_real_server_was_killed_is_handed_to_nobody(world: Servers, both: Tritons) -> None:
    world.split(10_000, limits=Limits(60.0, 60.0))
    slow = tensor(data=[6.5, 2, 3, 4])
    grpc_slow = message(MODEL, packed(1, 4)) + raw(struct.pack("<4f", 6.5, 2, 3, 4))
    before, ports = world.processes()["r1"], (both.running["r2"].http_port, both.running["r2"].grpc_port)
    with ThreadPoolExecutor(6) as pool, world.parts.envoy.channel() as channel:
        over_http = [pool.submit(world.http, OverHttp(slow)) for _ in range(3)]
        over_grpc = [pool.submit(told, channel, grpc_slow) for _ in range(3)]
        wait_until(lambda: world.asked(Rig.CANDIDATE, "rq_active") == 6, "requests in flight")
        for pid in world.processes()["r2"]:
            with suppress(ProcessLookupError):  # some end with the one before
                os.kill(pid, signal.SIGKILL)
        assert [one.result()[0] for one in over_http] == [503] * 3
        assert [one.result().name for one in over_grpc] == ["UNAVAILABLE"] * 3
        assert world.asked(Rig.STABLE) == 0
        wait_until(lambda: not any(accepts(port) for port in ports), "nobody to accept connections")  # ends after them
        assert world.is_well(channel)  # what comes later never reaches the dead one
    assert world.asked(Rig.STABLE) == 2
    assert world.processes()["r1"] == before
    assert world.counters().by_release[Rig.CANDIDATE].failed == 8  # of these two were answered by stable
    both.running["r2"] = both.start("r2")  # for the next test


def test_ten_thousand_requests_one_in_a_hundred_malformed_move_no_verdict(world: Servers) -> None:
    story = Story(world)
    before = world.processes()
    story.until("promoted", malformed_frac=0.01)
    while story.statuses.total() < 10_000:
        story.turn(1000, 0.01)
    good = {status for is_good, status in story.statuses if is_good}
    assert good == {200}
    assert {status for is_good, status in story.statuses if not is_good} == {400}
    malformed = sum(n for (is_good, _), n in story.statuses.items() if not is_good)
    assert 50 < malformed < 200
    assert not DecisionRecord.objects.filter(action__in=["roll_back", "pause"]).exists()
    counters = world.counters()
    assert counters.user_errors == 0
    assert sum(one.failed for one in counters.by_release.values()) == 0
    assert world.processes() == before
