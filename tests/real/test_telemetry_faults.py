"""Every way in which a gateway's counters can be wrong, on a real Envoy: with a proxy before its admin port that spoils answers."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from ledger.queries.clock import DatabaseClock
from registry.models import Release
from rollouts import actions
from rollouts.engine.loop import Engine
from rollouts.engine.timings import EngineTimings
from rollouts.models import DecisionRecord, Rollout
from rollouts.queries import view_of
from serving.ports import GatewayCounters, GatewayError
from serving.traffic.actions.gateways import register_gateway
from serving.traffic.actions.routes import set_route
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from tests.support.rigs.control_plane_rig import ControlPlaneProcess, Wire
from tests.support.rigs.gateway_rig import MODEL, Backend, Envoy, Loop, Rig, Traffic, rig, wait_until
from tests.support.servers.faulty_proxy import FaultyProxy, faulty_proxy
from tests.support.worlds.factories import (
    make_admin,
    make_environment,
    make_model,
    make_release,
    make_replica,
    make_server,
)

pytestmark = [pytest.mark.real("envoy"), pytest.mark.timeout(240)]

#: How the proxy spoils the page → what the reader says.
REASONS = {
    "error": "malformed",
    "busy": "malformed",
    "hang": "timeout",
    "trickle": "timeout",
    "refuse": "unreachable",
    "garbage": "malformed",
    "nan": "malformed",
    "empty": "malformed",
    "cut": "malformed",
}


# -- what the reader says ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig(tmp_path_factory.mktemp("envoy")) as built:
        built.apply(5000)
        yield built


@pytest.fixture
def proxy(parts: Rig) -> Iterator[FaultyProxy]:
    with faulty_proxy(parts.envoy.admin_url) as one:
        yield one


def users(parts: Rig, n: int = 6) -> None:
    for _ in range(n):
        assert parts.envoy.http().status == 200
    parts.envoy.flushed()


def read(counters: EnvoyCounters, proxy: FaultyProxy, timeout_s: float = 20.0) -> GatewayCounters:
    return counters.read(gateway="gateway-1", admin_url=proxy.url, models=[MODEL], timeout_s=timeout_s)[MODEL]


@pytest.mark.parametrize("mode", sorted(REASONS))
def test_every_way_to_answer_badly_has_its_reason_and_loses_no_count(parts: Rig, proxy: FaultyProxy, mode: str) -> None:
    counters = EnvoyCounters()
    users(parts)
    before = read(counters, proxy)
    proxy.mode = mode
    for _ in range(2):  # the second on whatever connection the first left behind
        began = time.monotonic()
        with pytest.raises(GatewayError) as caught:
            read(counters, proxy, timeout_s=0.5 if REASONS[mode] == "timeout" else 20.0)
        assert time.monotonic() - began < 15  # the proxy would keep it waiting for a minute
        assert caught.value.reason == REASONS[mode] and "gateway-1" in caught.value.message
    users(parts)
    proxy.mode = "ok"
    after = read(counters, proxy)
    assert after.epoch == before.epoch
    assert after.user_requests == before.user_requests + 6


def test_a_page_that_stands_still_grows_old(parts: Rig, proxy: FaultyProxy) -> None:
    counters = EnvoyCounters()
    users(parts)
    proxy.mode = "frozen"
    first = read(counters, proxy)
    users(parts)
    time.sleep(2.0)
    later = read(counters, proxy)
    assert later.user_requests == first.user_requests
    assert (later.read_at - first.read_at).total_seconds() < 1.5
    proxy.mode = "ok"
    assert read(counters, proxy).user_requests == first.user_requests + 6
    assert (read(counters, proxy).read_at - later.read_at).total_seconds() > 0.5


# -- what the engine does about it -------------------------------------------------------------------------------------

#: Faults in the order in which one rollout meets them, each at a weight of its own · what the decision says.
WALK = [
    ("error", "provider_down", "500"),
    ("hang", "provider_down", "timeout"),
    ("refuse", "provider_down", "unreachable"),
    ("garbage", "provider_down", "malformed"),
    ("nan", "provider_down", "malformed"),
    ("empty", "provider_down", "malformed"),
    ("cut", "provider_down", "malformed"),
    ("frozen", "provider_down", "s old"),
]
#: In which nothing moves, at least.
TURNS = 6
STEP: dict[str, Any] = {"min_s": 0, "min_samples": 40, "deadline_s": 600}
POLICY: dict[str, Any] = {
    "preset": "demo",
    "second_look": {"looks": 1},
    "steps": [{"weight_pct": 10 * (i + 1), **STEP} for i in range(len(WALK) + 1)],
    "bake": {**STEP, "min_s": 600, "deadline_s": 1200},
    "guards": [{"indicator": "errors"}],
    "no_data_s": 600,
    "stale_s": 2,
}


class Stage:
    """A rollout on a real Envoy that a real control plane tells, whose admin port the engine reaches through the proxy."""

    def __init__(self, folder: Path, proxies: contextlib.ExitStack, **policy: Any) -> None:
        self.loop = Loop()
        self.backends = {name: Backend(self.loop, name).start() for name in ("r1", "r2")}
        values = connection.settings_dict
        self.wire = Wire(self.loop, values["HOST"] or "127.0.0.1", int(values["PORT"] or 5432))
        self.wire.join()
        self.plane = ControlPlaneProcess(folder, self.wire)
        self.envoy = Envoy(folder, self.plane.port)
        self.proxy: FaultyProxy = proxies.enter_context(faulty_proxy(self.envoy.admin_url))
        self.admin = make_admin()
        self.environment = make_environment("production", needs_passed_report=False)
        self.model = make_model(MODEL, objectives={"errors_max_frac": 0.01}, rollout_policy={**POLICY, **policy})
        self.stable, self.candidate = (self._served(make_release(self.model), name) for name in ("r1", "r2"))
        register_gateway(
            actor=self.admin,
            environment=self.environment,
            name=self.envoy.name,
            admin_url=self.proxy.url,
            http_url=f"http://127.0.0.1:{self.envoy.port}",
            grpc_address=f"127.0.0.1:{self.envoy.port}",
        )
        set_route(
            actor=self.admin,
            environment=self.environment,
            model=self.model,
            stable=self.stable,
            reason="It serves.",
        )
        clock = DatabaseClock()
        self.counters = EnvoyCounters(now=clock.now)
        self.engine = Engine(self.counters, tick_s=0.2, lease_s=60, clock=clock)
        self.rollout = Rollout()
        self.traffic: Traffic | None = None

    def _served(self, release: Release, name: str) -> Release:
        assert release.name == name
        at = self.backends[name].endpoint
        replica = make_replica(release, self.environment, state="ready")
        make_server(replica, http_port=at.http_port, grpc_port=at.grpc_port, metrics_port=1)
        return release

    def start(self) -> None:
        self.plane.start()
        self.envoy.start()
        wait_until(self.envoy.is_open, "the gateway's port")
        self.traffic = Traffic(self.envoy, clients=3)
        self.rollout = actions.start_rollout(actor=self.admin, candidate=self.candidate, environment=self.environment)

    def close(self) -> None:
        if self.traffic is not None:
            self.traffic.stop()
        self.envoy.stop()
        self.envoy.log.close()
        self.plane.end(signal.SIGTERM)
        self.wire.cut()
        for one in self.backends.values():
            one.stop()
        self.loop.close()

    def turn(self) -> Rollout:
        self.engine.step()
        time.sleep(0.1)
        self.rollout.refresh_from_db()
        return self.rollout

    def until(self, is_so: Callable[[Rollout], object], within_s: float = 60.0) -> Rollout:
        end = time.monotonic() + within_s
        while not is_so(self.turn()):
            assert time.monotonic() < end, (self.rollout.state, self.rollout.weight_bp, self.rollout.reason)
        return self.rollout

    def blind(self, mode: str, words: str = "") -> DecisionRecord:
        """Turns while the proxy does this, until it is told: nothing moves. The last decision with these words.

        A turn in which this machine was slow says that the gateway has not told its counters yet, whatever the fault.
        """
        state, weight = self.rollout.state, self.rollout.weight_bp
        decisions = DecisionRecord.objects.filter(rollout=self.rollout).order_by("pk")
        before = decisions.latest("pk")
        self.proxy.mode = mode
        end, turns = time.monotonic() + 60, 0
        said = [before]
        while turns < TURNS or not any(words in one.reason for one in said):
            assert time.monotonic() < end, [(one.action, one.reason) for one in said]
            self.turn()
            turns += 1
            assert (self.rollout.state, self.rollout.weight_bp) == (state, weight), self.rollout.reason
            said = list(decisions.filter(pk__gt=before.pk)) or [before]  # who was blind already says it once
        assert {one.action for one in said} == {"hold"}, [(one.action, one.reason) for one in said]
        last = [one for one in said if words in one.reason][-1]
        assert last.action == "hold" and self.envoy.name in last.reason
        return last

    def quiet(self) -> Counter[str]:
        """Users stop, and everything they did is counted. What they saw."""
        assert self.traffic is not None
        seen, self.traffic = self.traffic.stop(), None
        self.envoy.flushed()
        for _ in range(3):
            self.turn()
        return seen

    def counted(self) -> int:
        return int(view_of(self.rollout)["arms"]["total"]["candidate"]["attempts"])

    def served(self) -> int:
        """What Envoy itself says, asked without the proxy: attempts of the candidate since it started."""
        read = EnvoyCounters().read(gateway="g", admin_url=self.envoy.admin_url, models=[MODEL], timeout_s=20.0)[MODEL]
        found = read.by_release.get(self.candidate.digest or "")
        return found.decided if found else 0


@pytest.fixture
def stage(tmp_path: Path, transactional_db: None) -> Iterator[Stage]:
    with contextlib.ExitStack() as proxies:
        built = Stage(tmp_path, proxies)
        try:
            built.start()
            yield built
        finally:
            built.close()


def test_a_rollout_meets_every_fault_holds_and_goes_on_counting_nothing_twice(stage: Stage) -> None:
    for i, (mode, code, words) in enumerate(WALK):
        stage.until(lambda rollout, wanted=1000 * (i + 1): rollout.weight_bp == wanted)
        last = stage.blind(mode, words)
        assert last.code == code, last.reason
        stage.proxy.mode = "ok"
    stage.until(lambda rollout: rollout.weight_bp == 1000 * (len(WALK) + 1))
    assert set(stage.quiet()) == {""}
    assert stage.counted() == stage.served() > 0
    acts = DecisionRecord.objects.filter(rollout=stage.rollout).values_list("action", flat=True)
    assert set(acts) <= {"request", "start", "advance", "hold"}


def test_what_breaks_in_the_dark_costs_users_nothing_and_is_rolled_back_in_when_the_light_returns(stage: Stage) -> None:
    stage.until(lambda rollout: rollout.weight_bp == 2000)
    stage.proxy.mode = "hang"
    stage.turn()
    stage.backends["r2"].mode = "error"
    assert stage.blind("hang").code == "provider_down"
    stage.proxy.mode = "ok"
    stage.until(lambda rollout: rollout.weight_bp == 0)
    done = stage.until(lambda rollout: rollout.state == "rolled_back")
    assert done.confirmed_at is not None and done.zero_at is not None
    assert set(stage.quiet()) == {""}
    assert stage.counted() == stage.served()


def test_a_restart_in_the_dark_is_counted_from_zero(stage: Stage) -> None:
    stage.until(lambda rollout: rollout.weight_bp == 2000)
    stage.blind("error")
    assert stage.traffic is not None
    stage.traffic.stop()
    stage.traffic = None
    stage.envoy.stop()  # and what it had counted since the last reading is gone with it
    before = stage.counted()
    stage.envoy.start()
    wait_until(stage.envoy.is_open, "the gateway's port")
    stage.traffic = Traffic(stage.envoy, clients=3)
    stage.blind("error")
    stage.proxy.mode = "ok"
    stage.until(lambda rollout: rollout.weight_bp >= 3000)
    stage.quiet()
    assert stage.counted() == before + stage.served()
    assert "roll_back" not in DecisionRecord.objects.filter(rollout=stage.rollout).values_list("action", flat=True)


def test_an_abort_in_the_dark_is_in_force_at_once_and_says_what_could_not_be_seen(stage: Stage) -> None:
    stage.until(lambda rollout: rollout.weight_bp == 2000)
    stage.blind("refuse")
    version = stage.rollout.version
    actions.abort(actor=stage.admin, rollout=stage.rollout, expected_version=version, reason="A hunch.")
    stage.engine.timings = EngineTimings(confirm_within_s=600.0)
    assert (
        stage.until(lambda rollout: rollout.zero_at is not None).state == "rolling_back"
    )  # long before it is confirmed
    zero = time.monotonic()
    stage.engine.timings = EngineTimings(confirm_within_s=1.0)
    done = stage.until(lambda rollout: rollout.state == "rolled_back")
    assert done.confirmed_at is None and "counters could not confirm it" in done.reason
    assert stage.traffic is not None
    assert not [call for call in stage.traffic.calls if call[0] > zero and call[1] == "r2"]
