"""What every gateway must do, fake and real: split, fall back on stable, count each attempt once for who served it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import grpc
import pytest
from django.utils import timezone

from serving.ports import ArmCounters, GatewayCounters
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.core.asleep import Asleep
from serving.traffic.core.buckets import EDGES_US, SIZE_EDGES
from serving.traffic.core.request_limits import Limits
from tests.support.fakes.gateway import FakeGateway
from tests.support.rigs.gateway_rig import MODEL, Rig, grpc_infer, rig, wait_until

STABLE, CANDIDATE = Rig.STABLE, Rig.CANDIDATE
LIMITS = Limits(timeout_s=6.0, attempt_timeout_s=0.75)


class Gateway(Protocol):
    """What the contract needs to say to either of them."""

    def route(self, candidate_bp: int | None, slot: int = 0, limits: Limits = LIMITS) -> None: ...
    def sleep(self) -> None:
        """From now on it answers for the model, which `route` ends."""
        ...

    def behave(self, how: str, stable: str = "ok") -> None:
        """The candidate, and stable: ok · error · hang · full, and the candidate: down."""
        ...

    def poison(self, n: int) -> None:
        """n requests that fail on either release."""
        ...

    def users(self, n: int) -> list[str | None]:
        """n requests: the release's digest that answered, None for a failure."""
        ...

    def read(self) -> GatewayCounters: ...
    def read_all(self) -> dict[str, GatewayCounters]:
        """Of every model, without naming any."""
        ...

    def restart(self) -> None: ...


class Fake:
    def __init__(self) -> None:
        self.gateway = FakeGateway()

    def route(self, candidate_bp: int | None, slot: int = 0, limits: Limits = LIMITS) -> None:
        candidate = None if candidate_bp is None else CANDIDATE
        self.gateway.set_route(
            MODEL, stable=STABLE, candidate=candidate, candidate_bp=candidate_bp or 0, limits=limits, slot=slot
        )

    def sleep(self) -> None:
        self.gateway.set_route(MODEL, stable=STABLE, is_asleep=True)

    def poison(self, n: int) -> None:
        self.gateway.traffic(n, poison_frac=1.0)

    def behave(self, how: str, stable: str = "ok") -> None:
        for digest, mode in ((CANDIDATE, how), (STABLE, stable)):
            self.gateway.set_arm(
                digest,
                error_frac=float(mode == "error"),
                hang_frac=float(mode == "hang"),
                shed_frac=float(mode == "full"),
                is_up=mode != "down",
            )

    def users(self, n: int) -> list[str | None]:
        return [None if one.is_error else one.release for one in self.gateway.traffic(n)]

    def read(self) -> GatewayCounters:
        return self.gateway.read(gateway="gateway-1", admin_url="", models=[MODEL], timeout_s=1.0)[MODEL]

    def read_all(self) -> dict[str, GatewayCounters]:
        return self.gateway.read(gateway="gateway-1", admin_url="", timeout_s=1.0)

    def restart(self) -> None:
        self.gateway.restart()


class Real:
    def __init__(self, parts: Rig) -> None:
        self.parts = parts
        self.counters = EnvoyCounters()

    def route(self, candidate_bp: int | None, slot: int = 0, limits: Limits = LIMITS) -> None:
        self.parts.apply(candidate_bp, limits=limits, slot=slot)

    def sleep(self) -> None:
        self.parts.apply(None, asleep=Asleep(7))

    def poison(self, n: int) -> None:
        """Both fail whatever they get meanwhile."""
        for backend in (self.parts.stable, self.parts.candidate):
            backend.mode = "error"
        self.users(n)
        for backend in (self.parts.stable, self.parts.candidate):
            backend.mode = "ok"

    def behave(self, how: str, stable: str = "ok") -> None:
        if how == "down":
            self.parts.candidate.stop()
        self.parts.candidate.mode, self.parts.stable.mode = how, stable

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
        return self._read([MODEL])[MODEL]

    def read_all(self) -> dict[str, GatewayCounters]:
        return self._read(None)

    def _read(self, models: list[str] | None) -> dict[str, GatewayCounters]:
        self.parts.envoy.flushed()
        url = self.parts.envoy.admin_url
        return self.counters.read(gateway="gateway-1", admin_url=url, models=models, timeout_s=20.0)

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
    assert (arm(counters, STABLE).decided, arm(counters, STABLE).failed, arm(counters, STABLE).routed) == (20, 0, 20)
    assert (counters.user_requests, counters.user_errors) == (20, 0)


def test_what_finds_a_model_asleep_reaches_no_server_and_is_counted_apart(gateway: Gateway) -> None:
    gateway.route(None)
    gateway.users(4)
    gateway.sleep()
    assert gateway.users(6) == [None] * 6
    counters = gateway.read()
    assert (counters.asleep, counters.user_requests, counters.user_errors, counters.forced) == (6, 4, 0, 0)
    assert (arm(counters, STABLE).routed, arm(counters, STABLE).failed) == (4, 0)
    gateway.route(None)
    assert gateway.users(2) == [STABLE, STABLE]
    counters = gateway.read()
    assert (counters.asleep, counters.user_requests) == (6, 6)
    epoch = counters.epoch
    gateway.sleep()
    gateway.restart()
    gateway.users(3)
    counters = gateway.read()
    assert (counters.asleep, counters.user_requests, counters.epoch == epoch) == (3, 0, False)


def test_the_split_is_as_commanded(gateway: Gateway) -> None:
    gateway.route(5000)
    answers = gateway.users(300)
    counters = gateway.read()
    assert 100 < answers.count(CANDIDATE) < 200  # binomial(300, ½): beyond 5.7 standard deviations
    assert arm(counters, CANDIDATE).routed == arm(counters, CANDIDATE).timed == answers.count(CANDIDATE)
    assert arm(counters, CANDIDATE).routed + arm(counters, STABLE).routed == 300


def test_weight_zero_is_zero(gateway: Gateway) -> None:
    gateway.route(0)
    assert set(gateway.users(50)) == {STABLE}
    candidate = arm(gateway.read(), CANDIDATE)
    assert (candidate.routed, candidate.timed) == (0, 0)


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
    assert bad.timed >= 5  # a server that is not there is set aside after five in a row
    assert bad.decided == bad.failed == bad.saved == bad.timed  # what stable got at once says nothing of it
    assert (bad.common, good.decided, good.routed) == (0, 0, 0)


def test_every_first_attempt_has_a_latency(gateway: Gateway) -> None:
    gateway.route(10_000)
    gateway.behave("hang")
    gateway.users(4)
    bad, good = arm(gateway.read(), CANDIDATE), arm(gateway.read(), STABLE)
    assert set(bad.latency_us) == set(EDGES_US)
    assert bad.latency_us[250_000] == 0
    assert bad.latency_us[5_000_000] == bad.timed == 4
    values = [bad.latency_us[edge] for edge in EDGES_US]
    assert values == sorted(values)
    assert good.timed == 0  # what stable answered in the second place is no measure of it


@pytest.mark.parametrize("how", ["error", "hang"])
def test_a_request_is_judged_by_its_first_attempt(gateway: Gateway, how: str) -> None:
    gateway.route(10_000)
    gateway.behave(how)
    gateway.users(4)
    bad, good = arm(gateway.read(), CANDIDATE), arm(gateway.read(), STABLE)
    assert (bad.routed, bad.decided, bad.failed, bad.saved, bad.common, bad.shed) == (4, 4, 4, 4, 0, 0)
    assert (good.routed, good.decided, good.failed) == (0, 0, 0)


def test_what_fails_wherever_it_goes_is_told_apart(gateway: Gateway) -> None:
    gateway.route(5000)
    gateway.behave("ok")
    gateway.users(20)
    gateway.poison(40)
    counters = gateway.read()
    for digest in (CANDIDATE, STABLE):
        one = arm(counters, digest)
        assert one.failed == one.common >= 5
    assert sum(one.failed for one in counters.by_release.values()) == 40
    assert counters.user_errors == 40


@pytest.mark.parametrize("stable", ["ok", "full"])
def test_a_server_whose_own_queue_is_full_sheds_whether_or_not_stable_has_room(gateway: Gateway, stable: str) -> None:
    gateway.route(10_000)
    gateway.behave("full", stable=stable)
    assert set(gateway.users(8)) == {STABLE if stable == "ok" else None}
    counters = gateway.read()
    bad = arm(counters, CANDIDATE)
    assert (bad.routed, bad.shed, bad.decided, bad.failed) == (8, 8, 0, 0)
    assert (bad.timed, max(bad.latency_us.values())) == (0, 0)  # a refusal in no time is no fast answer
    assert (counters.user_requests, counters.user_errors) == (8, 0 if stable == "ok" else 8)


def test_a_second_attempt_that_is_shed_saves_nothing_and_excuses_nothing(gateway: Gateway) -> None:
    gateway.route(10_000)
    gateway.behave("error", stable="full")
    assert set(gateway.users(8)) == {None}
    counters = gateway.read()
    bad = arm(counters, CANDIDATE)
    assert (bad.decided, bad.failed, bad.saved, bad.common, bad.shed) == (8, 8, 0, 0, 0)
    assert counters.user_errors == 8


@pytest.mark.parametrize("drawn", [CANDIDATE, STABLE])
def test_a_second_attempt_that_runs_out_of_time_excuses_nothing(gateway: Gateway, drawn: str) -> None:
    """A candidate that hangs leaves a short whole too little time for stable; whose fault that is, only the first one tells."""
    gateway.route(10_000 if drawn == CANDIDATE else 0, limits=Limits(timeout_s=1.0, attempt_timeout_s=0.75))
    gateway.behave("hang", stable="hang")
    assert set(gateway.users(4)) == {None}
    counters = gateway.read()
    bad = arm(counters, drawn)
    assert (bad.decided, bad.failed, bad.saved, bad.common, bad.timed) == (4, 4, 0, 0, 4)
    assert counters.user_errors == 4


def test_requests_are_counted_for_the_weight_that_they_began_under(gateway: Gateway) -> None:
    gateway.route(5000, slot=3)
    gateway.users(20)
    gateway.route(10_000, slot=0)
    gateway.users(10)
    counters = gateway.read()
    assert set(counters.by_slot) == {3, 0}
    assert sum(one.decided for one in counters.by_slot[3].values()) == 20
    assert {digest: one.routed for digest, one in counters.by_slot[0].items()} == {CANDIDATE: 10}
    assert arm(counters, CANDIDATE).routed == 10 + counters.by_slot[3][CANDIDATE].routed
    assert counters.by_slot[0][CANDIDATE].timed == counters.by_slot[0][CANDIDATE].latency_us[EDGES_US[-1]] == 10


def test_every_request_of_the_split_has_a_size(gateway: Gateway) -> None:
    gateway.route(5000)
    gateway.users(40)
    counters = gateway.read()
    for digest in (CANDIDATE, STABLE):
        one = arm(counters, digest)
        values = [one.size_bytes[edge] for edge in SIZE_EDGES]
        assert values == sorted(values) and values[-1] == one.routed > 0


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


def test_all_models_are_read_at_once(gateway: Gateway) -> None:
    gateway.route(5000)
    gateway.users(40)
    everything, one = gateway.read_all(), gateway.read()
    assert set(everything) == {MODEL}
    assert replace(everything[MODEL], read_at=one.read_at) == one
    assert everything[MODEL].user_requests == 40


def test_readings_follow_each_other_in_time(gateway: Gateway) -> None:
    gateway.route(None)
    gateway.users(1)
    before = timezone.now()
    instants = [before - timedelta(seconds=1), *(gateway.read().read_at for _ in range(3)), timezone.now()]
    assert instants == sorted(instants)
    gateway.restart()
    gateway.users(1)
    assert gateway.read().read_at > instants[-1]
