"""A rollout on a real database whose telemetry can be spoilt: gateways that count honestly, and a reader of them that lies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from accounts.core.access import Actor
from ledger.queries import clock as ledger_clock
from ledger.queries.clock import DatabaseClock
from registry.models import Release
from rollouts import actions
from rollouts.engine.loop import Engine
from rollouts.engine.prometheus_reader import PrometheusReader
from rollouts.engine.timings import EngineTimings
from rollouts.models import DecisionRecord, Rollout
from rollouts.queries import get_rollout, view_of
from serving.models import Gateway, Route
from serving.ports import ArmCounters, GatewayCounters, GatewayError
from serving.traffic.actions.routes import set_route
from tests.support.fakes.gateway import FakeGateway
from tests.support.fakes.ports import FakeMetrics
from tests.support.rigs.engine_rig import ROOM, hear_everyone
from tests.support.worlds.factories import (
    make_admin,
    make_environment,
    make_model,
    make_release,
    make_replica,
    make_server,
)

OBJECTIVES = {"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.01}}
#: The demo's tolerances with no waiting: only numbers differ.
POLICY: dict[str, Any] = {
    "preset": "demo",
    "second_look": {"looks": 1},
    "steps": [{"weight_pct": weight, "min_s": 0, "min_samples": 40, "deadline_s": 600} for weight in (25, 50)],
    "bake": {"min_s": 0, "min_samples": 40, "deadline_s": 600},
    "no_data_s": 600,
}
GUARDS: list[dict[str, Any]] = [{"indicator": "errors"}, {"indicator": "slow"}]
BAD, TOTAL = "orders_failed_total", "orders_total"
EXTERNAL: dict[str, Any] = {
    "indicator": "external",
    "label": "checkout",
    "bad_query": f'sum({BAD}{{release="$release"}})',
    "total_query": f'sum({TOTAL}{{release="$release"}})',
}


class Telemetry:
    """TrafficCounters over several fake gateways, by name. Each may have a fault of its own; without one it is passed on."""

    def __init__(self, gateways: Mapping[str, FakeGateway]) -> None:
        self.gateways = gateways
        self.faults: dict[str, Callable[[GatewayCounters], GatewayCounters]] = {}
        self._lost: dict[str, dict[str, GatewayCounters]] = {}

    def read(
        self, *, gateway: str, admin_url: str, timeout_s: float, models: Collection[str] | None = None
    ) -> dict[str, GatewayCounters]:
        read = self.gateways[gateway].read(gateway=gateway, admin_url=admin_url, timeout_s=timeout_s, models=models)
        lost, fault = self._lost.get(gateway, {}), self.faults.get(gateway, lambda found: found)
        return {model: fault(_less(found, lost[model]) if model in lost else found) for model, found in read.items()}

    def fail(self, reason: str, *names: str) -> None:
        """The gateways (all, unless some are named) answer nothing from now on, with this reason of GatewayError."""

        def failing(_: GatewayCounters) -> GatewayCounters:
            raise GatewayError(reason, f"told to fail: {reason}")

        self._all(failing, names)

    def crash(self, *names: str) -> None:
        """What reads them meets a bug of its own."""

        def crashing(_: GatewayCounters) -> GatewayCounters:
            raise RuntimeError("a bug in the adapter")

        self._all(crashing, names)

    def skew(self, seconds: float, *names: str) -> None:
        """Their readings are dated by a clock that is wrong."""
        self._all(lambda found: replace(found, read_at=found.read_at + timedelta(seconds=seconds)), names)

    def reset(self, *names: str) -> None:
        """Counts begin at zero, and nothing tells of a restart."""
        for name in names or self.gateways:
            self._lost[name] = self.gateways[name].read(gateway=name, admin_url="", timeout_s=1.0)

    def heal(self) -> None:
        self.faults.clear()
        for gateway in self.gateways.values():
            gateway.fail(None)
            gateway.freeze(False)

    def _all(self, fault: Callable[[GatewayCounters], GatewayCounters], names: Collection[str]) -> None:
        self.faults.update(dict.fromkeys(names or self.gateways, fault))


def _less(found: GatewayCounters, lost: GatewayCounters) -> GatewayCounters:
    return replace(
        found,
        by_release=_arms_less(found.by_release, lost.by_release),
        by_slot={slot: _arms_less(arms, lost.by_slot.get(slot, {})) for slot, arms in found.by_slot.items()},
        user_requests=found.user_requests - lost.user_requests,
        user_errors=found.user_errors - lost.user_errors,
    )


def _arms_less(arms: dict[str, ArmCounters], lost: dict[str, ArmCounters]) -> dict[str, ArmCounters]:
    return {digest: _arm_less(arm, lost.get(digest, ArmCounters())) for digest, arm in arms.items()}


def _arm_less(arm: ArmCounters, lost: ArmCounters) -> ArmCounters:
    left: dict[str, Any] = {}
    for name in (one.name for one in fields(arm)):
        now, then = getattr(arm, name), getattr(lost, name)
        left[name] = {key: now[key] - then.get(key, 0) for key in now} if isinstance(now, dict) else now - then
    return ArmCounters(**left)


class Seconds:
    """Time that passes when a test says so: for this host's clock (once a test has installed `now`) and the database's."""

    def __init__(self) -> None:
        self.ahead_s = self.host_ahead_s = 0.0
        self.frozen_at: datetime | None = None
        self.is_installed = False

    def now(self) -> datetime:
        """This host's clock, which may be wrong by `host_ahead_s`."""
        return (self.frozen_at or REAL_NOW()) + timedelta(seconds=self.ahead_s + self.host_ahead_s)

    @contextmanager
    def installed(self, monkeypatch: pytest.MonkeyPatch, *, is_frozen: bool = False) -> Iterator[None]:
        """`is_frozen`: real time adds nothing to it, however long the machine takes."""
        self.__init__()  # type: ignore[misc]
        self.is_installed = True
        monkeypatch.setattr(timezone, "now", self.now)
        true = ledger_clock.now
        if is_frozen:
            self.frozen_at = true()
            monkeypatch.setattr(ledger_clock, "time", SimpleNamespace(monotonic=lambda: self.ahead_s))
        monkeypatch.setattr(ledger_clock, "now", lambda: (self.frozen_at or true()) + timedelta(seconds=self.ahead_s))
        yield
        self.is_installed = False


REAL_NOW = timezone.now
SECONDS = Seconds()


class ReaderByHand(PrometheusReader):
    """Reads when it is told to, not in the background."""

    def _run(self) -> None: ...


class World:
    """One model, one environment, `gateways` gateways, an engine; with `external` a guard that counts in a metrics server."""

    def __init__(self, *, gateways: int = 1, external: bool | dict[str, Any] = False, **policy: object) -> None:
        self.admin = make_admin()
        mine = [{**EXTERNAL, **(external if isinstance(external, dict) else {})}] if external else []
        whole = {**POLICY, "guards": [*GUARDS, *mine], **policy}
        self.model = make_model(objectives=OBJECTIVES, rollout_policy=whole)
        self.environment = make_environment("production", needs_passed_report=False)
        names = [f"gateway-{number}" for number in range(1, gateways + 1)]
        for i, name in enumerate(names):
            urls = {"admin_url": f"http://127.0.0.1:{i + 1}", "http_url": f"http://127.0.0.1:{i + 101}"}
            Gateway.objects.create(environment=self.environment, name=name, grpc_address="127.0.0.1:3", **urls)
        clock = DatabaseClock()
        clock.sync()
        self.gateways = {name: FakeGateway(name, seed=5 + i, now=clock.now) for i, name in enumerate(names)}
        self.telemetry = Telemetry(self.gateways)
        self.metrics = FakeMetrics()
        self.reader = ReaderByHand(self.metrics, now=lambda: timezone.now())
        timings = EngineTimings(zero_poll_for_s=0.0, effects_share=ROOM)
        self.engine = hear_everyone(
            Engine(self.telemetry, tick_s=0.1, lease_s=600, external=self.reader, clock=clock, timings=timings)
        )
        self.is_running = False
        self.stable = self.serve(make_release(self.model))
        set_route(
            actor=Actor.system("test"),
            environment=self.environment,
            model=self.model,
            stable=self.stable,
            reason="It serves.",
        )
        self.obey()
        self.candidate = self.serve(make_release(self.model))
        self.orders = {self.stable.name: 0, self.candidate.name: 0}  # taken since the world began, by release
        self.orders_failed: dict[str, float] = {}  # the share of them that fail, by release
        self.exposes = True  # whether the candidate's orders can be scraped
        self.rollout = actions.start_rollout(actor=self.admin, candidate=self.candidate, environment=self.environment)

    def serve(self, release: Release) -> Release:
        replica = make_replica(release, self.environment, state="ready")
        port = 9000 + 3 * replica.pk
        make_server(replica, http_port=port, grpc_port=port + 1, metrics_port=port + 2)
        return release

    def obey(self) -> None:
        """Through a control plane that dates what gateways say by the database's time, as the real one does."""
        wrong, SECONDS.host_ahead_s = SECONDS.host_ahead_s, 0.0
        for gateway in self.gateways.values():
            gateway.obey()
        SECONDS.host_ahead_s = wrong

    def turn(self, requests: int = 200, *, seconds: float = 1.0) -> Rollout:
        """Traffic, then one tick of the engine, then the gateways take what was written."""
        if SECONDS.is_installed:
            SECONDS.ahead_s += seconds
        for gateway in self.gateways.values():
            gateway.traffic(requests)
        for release in (self.stable, self.candidate):
            self.orders[release.name] += requests
            if self.exposes or release is self.stable:
                self.metrics.add(TOTAL, requests, release=release.name)
                failed = round(requests * self.orders_failed.get(release.name, 0.0))
                self.metrics.add(BAD, failed, release=release.name)
        self.reader.read_now()
        if self.is_running:
            time.sleep(self.engine.tick_s)
        else:
            self.engine.step()
        self.obey()
        self.rollout.refresh_from_db()
        return self.rollout

    @contextmanager
    def running(self) -> Iterator[None]:
        """The engine runs by itself meanwhile, as its process does; turns bring traffic only."""

        def run() -> None:
            try:
                self.engine.run()
            finally:
                connection.close()

        thread = threading.Thread(target=run, name="engine", daemon=True)
        self.is_running = True
        thread.start()
        try:
            yield
        finally:
            self.engine.stop()
            thread.join(30)
            assert not thread.is_alive()

    def until(self, state: str, *, turns: int = 80, requests: int = 200) -> Rollout:
        for _ in range(turns):
            if self.turn(requests).state == state:
                return self.rollout
        said = [(d.action, d.code, d.reason) for d in DecisionRecord.objects.order_by("pk")]
        raise AssertionError(f"still {self.rollout.state}, not {state}: {self.rollout.reason} {said}")

    def until_weight(self, weight_bp: int) -> None:
        for _ in range(40):
            if self.turn().weight_bp == weight_bp:
                return
        raise AssertionError(f"still at {self.rollout.weight_bp}: {self.rollout.reason}")

    def until_code(self, code: str, *, requests: int = 200) -> None:
        for _ in range(40):
            self.turn(requests)
            if self.codes()[-1] == code:
                return
        raise AssertionError(f"not {code}: {self.codes()}")

    def heal(self) -> None:
        self.telemetry.heal()
        self.metrics.fail(None)

    def bring(self, state: str) -> Rollout:
        """shifting, paused, baking, or rolling_back with the gateways' acknowledgement still to come."""
        self.until("baking" if state == "baking" else "shifting")
        self.turn()
        verb = {"paused": actions.pause, "rolling_back": actions.roll_back}.get(state)
        if verb is not None:
            version = self.rollout.version
            verb(actor=self.admin, rollout=self.rollout, expected_version=version, reason="A hunch.")
            self.rollout.refresh_from_db()
        assert self.rollout.state == state
        return self.rollout

    def break_candidate(self) -> None:
        for gateway in self.gateways.values():
            gateway.set_arm(self.candidate.digest or "", error_frac=0.5)

    def actions(self) -> list[str]:
        return list(DecisionRecord.objects.filter(rollout=self.rollout).order_by("pk").values_list("action", flat=True))

    def codes(self) -> list[str]:
        return list(DecisionRecord.objects.filter(rollout=self.rollout).order_by("pk").values_list("code", flat=True))

    def view(self) -> dict[str, Any]:
        return view_of(get_rollout(self.admin, self.rollout.pk))

    def route(self) -> Route:
        return Route.objects.get(environment=self.environment, model=self.model)

    def served(self) -> int:
        """First attempts that the candidate really got, at all gateways, since they began."""
        slug, digest = self.model.slug, self.candidate.digest or ""
        reads = (one.read(gateway=name, admin_url="", timeout_s=1.0) for name, one in self.gateways.items())
        return sum(read[slug].by_release.get(digest, ArmCounters()).timed for read in reads if slug in read)

    def orders_counted(self) -> int:
        """Orders of the candidate that its external guard has taken in, in this stage."""
        (guard,) = (one for one in self.view()["guards"] if one["name"].startswith("external_"))
        return int(guard["candidate"])

    def counted(self) -> int:
        """Attempts of the candidate that the rollout has taken in."""
        return int(self.view()["arms"]["total"]["candidate"]["attempts"])
