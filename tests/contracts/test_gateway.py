"""What every gateway must do, fake and real: split, fall back on stable, count each attempt once for who served it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import grpc
import pytest

from serving.core.buckets import EDGES_US
from serving.core.routes import Limits
from serving.envoy import EnvoyCounters
from serving.envoy_bootstrap import FLUSH_S
from serving.fake_gateway import FakeGateway
from serving.ports import ArmCounters, GatewayCounters
from tests.gateway_rig import MODEL, Rig, grpc_infer, rig, wait_until

STABLE, CANDIDATE = Rig.STABLE, Rig.CANDIDATE
LIMITS = Limits(timeout_s=5.0, attempt_timeout_s=0.3)


class Gateway(Protocol):
    """What the contract needs to say to either of them."""

    def route(self, candidate_bp: int | None) -> None: ...
    def behave(self, how: str) -> None:
        """The candidate: ok · error · hang · down."""
        ...

    def users(self, n: int) -> list[str | None]:
        """n requests: the release's digest that answered, None for a failure."""
        ...

    def read(self) -> GatewayCounters: ...
    def restart(self) -> None: ...


class Fake:
    def __init__(self) -> None:
        self.gateway = FakeGateway()

    def route(self, candidate_bp: int | None) -> None:
        candidate = None if candidate_bp is None else CANDIDATE
        self.gateway.set_route(MODEL, stable=STABLE, candidate=candidate, candidate_bp=candidate_bp or 0, limits=LIMITS)

    def behave(self, how: str) -> None:
        self.gateway.set_arm(
            CANDIDATE, error_frac=float(how == "error"), hang_frac=float(how == "hang"), is_up=how != "down"
        )

    def users(self, n: int) -> list[str | None]:
        return [None if one.is_error else one.release for one in self.gateway.traffic(n)]

    def read(self) -> GatewayCounters:
        return self.gateway.read(gateway="gateway-1", admin_url="", model=MODEL, timeout_s=1.0)

    def restart(self) -> None:
        self.gateway.restart()


class Real:
    def __init__(self, parts: Rig) -> None:
        self.parts = parts
        self.counters = EnvoyCounters()

    def route(self, candidate_bp: int | None) -> None:
        self.parts.apply(candidate_bp, limits=LIMITS)

    def behave(self, how: str) -> None:
        if how == "down":
            self.parts.candidate.stop()
        self.parts.candidate.mode = how

    def users(self, n: int) -> list[str | None]:
        """HTTP and gRPC in turn."""
        with self.parts.envoy.channel() as channel, ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda i: self._user(channel, i), range(n)))

    def _user(self, channel: grpc.Channel, i: int) -> str | None:
        if i % 2:
            code, release, _ = grpc_infer(channel)
            is_well = code is grpc.StatusCode.OK
        else:
            answer = self.parts.envoy.http()
            is_well, release = answer.status == 200, answer.release
        return {"r1": STABLE, "r2": CANDIDATE}[str(release)] if is_well else None

    def read(self) -> GatewayCounters:
        time.sleep(2 * FLUSH_S + 0.05)
        return self.counters.read(gateway="gateway-1", admin_url=self.parts.envoy.admin_url, model=MODEL, timeout_s=2.0)

    def restart(self) -> None:
        self.parts.envoy.stop()
        self.parts.envoy.start()
        wait_until(self.parts.envoy.is_open, "the port after a restart")


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as built:
        yield built


@pytest.fixture(params=["fake", pytest.param("envoy", marks=pytest.mark.real("envoy"))])
def gateway(request: pytest.FixtureRequest) -> Gateway:
    return Fake() if request.param == "fake" else Real(request.getfixturevalue("parts"))


# -- the contract, on both ---------------------------------------------------------------------------------------------


def arm(counters: GatewayCounters, digest: str) -> ArmCounters:
    return counters.by_release.get(digest, ArmCounters())


def test_without_a_candidate_stable_answers_everything(gateway: Gateway) -> None:
    gateway.route(None)
    assert set(gateway.users(20)) == {STABLE}
    counters = gateway.read()
    assert (arm(counters, STABLE).attempts, arm(counters, STABLE).errors, arm(counters, STABLE).routed) == (20, 0, 20)
    assert (counters.user_requests, counters.user_errors) == (20, 0)


def test_the_split_is_as_commanded(gateway: Gateway) -> None:
    gateway.route(5000)
    answers = gateway.users(300)
    counters = gateway.read()
    assert 100 < answers.count(CANDIDATE) < 200  # binomial(300, ½): beyond 5.7 standard deviations
    assert arm(counters, CANDIDATE).routed == arm(counters, CANDIDATE).attempts == answers.count(CANDIDATE)
    assert arm(counters, CANDIDATE).routed + arm(counters, STABLE).routed == 300


def test_weight_zero_is_zero(gateway: Gateway) -> None:
    gateway.route(0)
    assert set(gateway.users(50)) == {STABLE}
    assert arm(gateway.read(), CANDIDATE) == ArmCounters() or arm(gateway.read(), CANDIDATE).attempts == 0


@pytest.mark.parametrize("how", ["error", "down", "hang"])
def test_a_broken_candidate_costs_users_nothing_and_is_counted(gateway: Gateway, how: str) -> None:
    gateway.route(10_000)
    gateway.behave(how)
    answers = gateway.users(24)
    counters = gateway.read()
    assert set(answers) == {STABLE}
    assert (counters.user_requests, counters.user_errors) == (24, 0)
    bad, good = arm(counters, CANDIDATE), arm(counters, STABLE)
    assert bad.routed == 24
    assert bad.attempts == bad.errors >= 5  # a server that is not there is set aside after five in a row
    assert (good.attempts, good.errors, good.routed) == (24, 0, 0)


def test_every_attempt_has_a_latency(gateway: Gateway) -> None:
    gateway.route(10_000)
    gateway.behave("hang")
    gateway.users(4)
    bad, good = arm(gateway.read(), CANDIDATE), arm(gateway.read(), STABLE)
    assert set(bad.latency_us) == set(good.latency_us) == set(EDGES_US)
    assert bad.latency_us[250_000] == 0
    assert bad.latency_us[1_000_000] == bad.attempts
    assert good.latency_us[EDGES_US[-1]] == good.attempts
    values = [bad.latency_us[edge] for edge in EDGES_US]
    assert values == sorted(values)


def test_a_restart_changes_the_epoch_and_begins_anew(gateway: Gateway) -> None:
    gateway.route(None)
    gateway.users(10)
    before = gateway.read()
    assert gateway.read().epoch == before.epoch
    gateway.restart()
    gateway.users(3)
    after = gateway.read()
    assert after.epoch != before.epoch
    assert after.user_requests == 3


def test_a_model_nobody_asked_for_has_no_counts(gateway: Gateway) -> None:
    gateway.route(None)
    assert gateway.read().by_release == {}
