"""An honest fake of a gateway: it splits, retries on stable and counts as the real one does, without a network."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from django.utils import timezone

from serving.core.buckets import EDGES_US, SIZE_EDGES
from serving.core.routes import WHOLE_BP, Limits, ModelRoute, RoutingTable, admit
from serving.models import Gateway
from serving.ports import ArmCounters, GatewayCounters, GatewayError
from serving.xds import store


@dataclass(frozen=True)
class Behaviour:
    """How a release answers. Latency is log-normal: `latency_ms` is its median, `spread` the deviation of its log.

    `slow_frac` of the answers take `slow_ms` instead; `error_frac` fail at once; `hang_frac` never come.
    """

    error_frac: float = 0.0
    latency_ms: float = 20.0
    spread: float = 0.2
    slow_frac: float = 0.0
    slow_ms: float = 1000.0
    hang_frac: float = 0.0
    is_up: bool = True
    request_bytes: int = 100  # the size of the requests that the split sends to it


@dataclass(frozen=True)
class UserAnswer:
    """What a user saw: the release that answered, or failed last."""

    release: str
    is_error: bool
    latency_ms: float


@dataclass
class _Counts:
    attempts: int = 0
    errors: int = 0
    routed: int = 0
    latency_us: dict[int, int] = field(default_factory=lambda: dict.fromkeys(EDGES_US, 0))
    size_bytes: dict[int, int] = field(default_factory=lambda: dict.fromkeys(SIZE_EDGES, 0))

    def route(self, size: int, times: int = 1) -> None:
        self.routed += times
        for edge in SIZE_EDGES:
            self.size_bytes[edge] += times * (size < edge)


@dataclass(frozen=True)
class _Split:
    stable: str
    candidate: str | None
    candidate_bp: int
    limits: Limits


class FakeGateway:
    """Implements TrafficCounters. `name` is that of its Gateway row, if any. The same seed gives the same traffic."""

    def __init__(self, name: str = "gateway-1", *, seed: int = 1, now: Callable[[], datetime] = timezone.now) -> None:
        self.name = name
        self._now = now
        self._random = random.Random(seed)
        self._splits: dict[str, _Split] = {}
        self._behaviours: dict[str, Behaviour] = {}
        self._table: RoutingTable | None = None
        self._starts = 0
        self._fails: GatewayError | None = None
        self._frozen: dict[str, GatewayCounters] | None = None
        self._frozen_at = now()
        self.restart()

    # -- what it is told --------------------------------------------------------------------------------------------

    def set_route(
        self,
        model: str,
        *,
        stable: str,
        candidate: str | None = None,
        candidate_bp: int = 0,
        limits: Limits | None = None,
    ) -> None:
        """Routes by digests, without a database."""
        if not 0 <= candidate_bp <= WHOLE_BP or (candidate_bp and candidate is None):
            raise ValueError(f"{candidate_bp} bp to {candidate} is no split")
        self._splits[model] = _Split(stable, candidate, candidate_bp, limits or Limits())

    def obey(self) -> RoutingTable:
        """Takes its environment's routes from the database and acknowledges them, as Envoy and control plane would."""
        row = Gateway.objects.select_related("environment").get(name=self.name)
        loaded = store.load()
        admission = admit(loaded.tables[row.environment.slug], self._table, loaded.known[row.environment.slug])
        self._table, now = admission.table, timezone.now()
        held = {problem.route_id: problem for problem in admission.problems if problem.is_held}
        acks = []
        for route in admission.table.models:
            self._take(route)
            problem = held.get(route.route_id)
            generation = problem.generation if problem else route.generation
            acks.append(store.AckRow(row.pk, route.route_id, generation, problem.message if problem else "", now))
        store.write_acks(acks)
        store.write_seen([row.pk], now)
        return admission.table

    def _take(self, route: ModelRoute) -> None:
        candidate = route.candidate.digest if route.candidate else None
        self.set_route(
            route.model,
            stable=route.stable.digest,
            candidate=candidate,
            candidate_bp=route.candidate_bp,
            limits=route.limits,
        )

    def set_arm(self, digest: str, **changes: float | bool) -> None:
        """Changes how a release behaves from now on; see Behaviour for the names."""
        self._behaviours[digest] = replace(self._behaviours.get(digest, Behaviour()), **changes)  # type: ignore[arg-type]

    def restart(self) -> None:
        """A new process: counts begin anew, routes are fetched again."""
        self._starts += 1
        self._counts: dict[str, dict[str, _Counts]] = {}
        self._users: dict[str, list[int]] = {}

    def fail(self, reason: str | None) -> None:
        """From now on readings fail with this reason of GatewayError; None ends it."""
        self._fails = GatewayError(reason, f"{self.name} is told to fail: {reason}") if reason else None

    def freeze(self, is_frozen: bool = True) -> None:
        """From now on readings repeat what was counted until now, and are dated back to now; traffic goes on."""
        self._frozen_at = self._now()
        counters = {model: self._counters(self.name, model, self._frozen_at) for model in self._counts}
        self._frozen = counters if is_frozen else None

    # -- traffic ----------------------------------------------------------------------------------------------------

    def traffic(self, n: int, model: str | None = None) -> list[UserAnswer]:
        """`n` requests from users. `model` may be left out where only one is routed."""
        if model is None:
            (model,) = self._splits
        return [self._request(model) for _ in range(n)]

    def _request(self, model: str) -> UserAnswer:
        split = self._splits[model]
        picked = split.stable
        if split.candidate is not None and self._random.randrange(WHOLE_BP) < split.candidate_bp:
            picked = split.candidate
        self._arm(model, picked).route(self._behaviours.get(picked, Behaviour()).request_bytes)
        is_error, latency_ms, release = *self._attempt(model, picked, split.limits), picked
        if is_error:
            again, more_ms = self._attempt(model, split.stable, split.limits)
            is_error, latency_ms, release = again, latency_ms + more_ms, split.stable
        users = self._users.setdefault(model, [0, 0])
        users[0] += 1
        users[1] += is_error
        return UserAnswer(release, is_error, latency_ms)

    def _attempt(self, model: str, digest: str, limits: Limits) -> tuple[bool, float]:
        how, draw = self._behaviours.get(digest, Behaviour()), self._random.random
        longest_ms = limits.attempt_timeout_s * 1000
        if not how.is_up:
            is_error, latency_ms = True, 0.0
        elif draw() < how.error_frac:
            is_error, latency_ms = True, 1.0
        else:
            latency_ms = how.latency_ms * math.exp(self._random.gauss(0.0, how.spread))
            latency_ms = how.slow_ms if draw() < how.slow_frac else latency_ms
            latency_ms = math.inf if draw() < how.hang_frac else latency_ms
            is_error, latency_ms = latency_ms >= longest_ms, min(latency_ms, longest_ms)
        counts = self._arm(model, digest)
        counts.attempts += 1
        counts.errors += is_error
        for edge in EDGES_US:
            counts.latency_us[edge] += latency_ms * 1000 < edge
        return is_error, latency_ms

    def _arm(self, model: str, digest: str) -> _Counts:
        return self._counts.setdefault(model, {}).setdefault(digest, _Counts())

    def count(
        self, model: str, digest: str, *, attempts: int, errors: int = 0, slow: int = 0, users: int | None = None
    ) -> None:
        """Attempts that were made elsewhere, all first picks: `slow` of them took 2 s, the others 20 ms, failures no time."""
        counts = self._arm(model, digest)
        counts.attempts += attempts
        counts.errors += errors
        counts.route(100, attempts)
        for edge in EDGES_US:
            fast = errors + (attempts - errors - slow) * (edge > 20_000)
            counts.latency_us[edge] += attempts if edge > 2_000_000 else fast
        self._users.setdefault(model, [0, 0])[0] += attempts if users is None else users

    # -- TrafficCounters --------------------------------------------------------------------------------------------

    def read(
        self, *, gateway: str, admin_url: str, timeout_s: float, models: Collection[str] | None = None
    ) -> dict[str, GatewayCounters]:
        if self._fails is not None:
            raise self._fails
        if self._frozen is None:
            read_at = self._now()
            return {model: self._counters(gateway, model, read_at) for model in (models or self._counts)}
        empty = GatewayCounters(gateway, self._epoch, self._frozen_at, {})
        return {model: self._frozen.get(model, empty) for model in (models or self._frozen)}

    @property
    def _epoch(self) -> str:
        return f"start-{self._starts}"

    def _counters(self, gateway: str, model: str, read_at: datetime) -> GatewayCounters:
        arms: Mapping[str, _Counts] = self._counts.get(model, {})
        by_release = {
            digest: ArmCounters(one.attempts, one.errors, one.routed, dict(one.latency_us), dict(one.size_bytes))
            for digest, one in sorted(arms.items())
        }
        return GatewayCounters(gateway, self._epoch, read_at, by_release, *self._users.get(model, (0, 0)))


def envoy_page(counters: Mapping[str, GatewayCounters], *, uptime_s: int) -> str:
    """The counters, by model, as an Envoy shows them to `serving.envoy.EnvoyCounters`."""
    attempts, latencies, requests = [], [], []
    for model, counted in counters.items():
        errors_left = counted.user_errors
        for digest, arm in counted.by_release.items():
            labels = f"model.{model}.digest.{digest}.entry.split"
            failed = min(errors_left, arm.routed)
            errors_left -= failed
            attempts += _outcomes(f"sli.attempt.{labels}", arm.attempts - arm.errors, arm.errors)
            requests += _outcomes(f"sli.request.{labels}", arm.routed - failed, failed)
            buckets = " ".join(f"B{edge / 1000:g}(0,{count})" for edge, count in arm.latency_us.items())
            latencies.append(f"sli.latency.{labels}: {buckets}")
            sizes = " ".join(f"B{edge}(0,{count})" for edge, count in arm.size_bytes.items())
            latencies.append(f"sli.size.{labels}: {sizes}")
    return "\n".join([f"server.uptime: {uptime_s}", *attempts, *latencies, *requests, ""])


def _outcomes(name: str, right: int, failed: int) -> list[str]:
    outcomes = (("code.200.grpc.0.flags.-", right), ("code.500.grpc..flags.-", failed))
    return [f"{name}.{outcome}: B1e+09(0,{count})" for outcome, count in outcomes if count]
