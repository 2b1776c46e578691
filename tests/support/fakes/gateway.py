"""An honest fake of a gateway: it splits, retries on stable and counts as the real one does, without a network."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any

from django.utils import timezone

from serving.models import Gateway
from serving.ports import ArmCounters, GatewayCounters, GatewayError
from serving.traffic.control_plane import store
from serving.traffic.core.buckets import EDGES_US, SIZE_EDGES
from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import (
    WHOLE_BP,
    ModelRoute,
    RoutingTable,
    admit,
)


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
    shed_frac: float = (
        0.0  # of what is sent to it: refused, because too many were in flight, or because its own queue was full
    )


@dataclass(frozen=True)
class UserAnswer:
    """What a user saw: the release that answered, or failed last."""

    release: str
    is_error: bool
    latency_ms: float


@dataclass(frozen=True)
class _Attempt:
    """How one attempt ended. `is_untold`: shed, or out of time, so that it tells nothing of the request."""

    is_error: bool
    latency_ms: float
    is_untold: bool = False


@dataclass
class _Counts:
    """Of one release in one slot; see ArmCounters."""

    routed: int = 0
    decided: int = 0
    failed: int = 0
    saved: int = 0
    common: int = 0
    shed: int = 0
    timed: int = 0
    latency_us: dict[int, int] = field(default_factory=lambda: dict.fromkeys(EDGES_US, 0))
    size_bytes: dict[int, int] = field(default_factory=lambda: dict.fromkeys(SIZE_EDGES, 0))
    answered: int = 0
    answered_us: dict[int, int] = field(default_factory=lambda: dict.fromkeys(EDGES_US, 0))

    def route(self, size: int, times: int = 1) -> None:
        self.routed += times
        for edge in SIZE_EDGES:
            self.size_bytes[edge] += times * (size < edge)

    def time(self, latency_ms: float, *, is_error: bool) -> None:
        self.timed += 1
        self.answered += not is_error
        for edge in EDGES_US:
            self.latency_us[edge] += latency_ms * 1000 < edge
            self.answered_us[edge] += not is_error and latency_ms * 1000 < edge

    def counters(self) -> ArmCounters:
        counts = {one.name: getattr(self, one.name) for one in fields(self)}
        return ArmCounters(
            **counts
            | {
                "latency_us": dict(self.latency_us),
                "size_bytes": dict(self.size_bytes),
                "answered_us": dict(self.answered_us),
            }
        )


def _sum(parts: Collection[ArmCounters]) -> ArmCounters:
    """Counts of several slots in one."""

    def added(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return {k: sum(v[k] for v in values) for k in values[0]} if isinstance(values[0], dict) else sum(values)

    return ArmCounters(**{one.name: added(one.name) for one in fields(ArmCounters)})


@dataclass(frozen=True)
class _Split:
    stable: str
    candidate: str | None
    candidate_bp: int
    limits: Limits
    slot: int
    is_asleep: bool = False


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
        self.silent: set[str] = set()  # gateways that it is asked as, and does not answer for
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
        slot: int = 0,
        is_asleep: bool = False,
    ) -> None:
        """Routes by digests, without a database."""
        if not 0 <= candidate_bp <= WHOLE_BP or (candidate_bp and candidate is None):
            raise ValueError(f"{candidate_bp} bp to {candidate} is no split")
        self._splits[model] = _Split(stable, candidate, candidate_bp, limits or Limits(), slot, is_asleep)

    def obey(self) -> RoutingTable:
        """Takes its environment's routes from the database and acknowledges them, as Envoy and control plane would."""
        row = Gateway.objects.select_related("environment").get(name=self.name)
        loaded = store.load()
        admission = admit(loaded.tables[row.environment.slug], self._table, loaded.known[row.environment.slug])
        self._table, now = admission.table, timezone.now()
        held = {problem.route_id: problem for problem in admission.problems if problem.is_withheld}
        acks = []
        for route in admission.table.models:
            self._take(route)
            problem = held.get(route.route_id)
            generation = problem.generation if problem else route.generation
            acks.append(store.AckRow(row.pk, route.route_id, generation, problem.message if problem else "", now))
        store.write_acks(acks)
        store.write_seen([row.pk], now)
        store.write_follows({row.pk: loaded.read_at[row.environment.slug]})
        return admission.table

    def _take(self, route: ModelRoute) -> None:
        if route.asleep is not None and route.asleep.is_preparing:
            return  # its callers reach no release
        candidate = route.candidate.digest if route.candidate else None
        self.set_route(
            route.model,
            stable=route.stable.digest,
            candidate=candidate,
            candidate_bp=route.candidate_bp,
            limits=route.limits,
            slot=route.slot,
            is_asleep=route.asleep is not None,
        )

    def set_arm(self, digest: str, **changes: float | bool) -> None:
        """Changes how a release behaves from now on; see Behaviour for the names."""
        self._behaviours[digest] = replace(self._behaviours.get(digest, Behaviour()), **changes)  # type: ignore[arg-type]

    def restart(self) -> None:
        """A new process: counts begin anew, routes are fetched again."""
        self._starts += 1
        self._counts: dict[str, dict[tuple[int, str], _Counts]] = {}  # by model, then by slot and release
        self._users: dict[str, list[int]] = {}
        self._asleep: dict[str, int] = {}

    def fail(self, reason: str | None) -> None:
        """From now on readings fail with this reason of GatewayError; None ends it."""
        self._fails = GatewayError(reason, f"{self.name} is told to fail: {reason}") if reason else None

    def freeze(self, is_frozen: bool = True) -> None:
        """From now on readings repeat what was counted until now, and are dated back to now; traffic goes on."""
        self._frozen_at = self._now()
        counters = {model: self._counters(self.name, model, self._frozen_at) for model in self._counts}
        self._frozen = counters if is_frozen else None

    # -- traffic ----------------------------------------------------------------------------------------------------

    def traffic(self, n: int, model: str | None = None, *, poison_frac: float = 0.0) -> list[UserAnswer]:
        """`n` requests from users, of which `poison_frac` fail wherever they go. `model` may be left out where only one is routed."""
        if model is None:
            (model,) = self._splits
        return [self._request(model, is_poison=self._random.random() < poison_frac) for _ in range(n)]

    def _request(self, model: str, *, is_poison: bool) -> UserAnswer:
        split = self._splits[model]
        if split.is_asleep:
            self._asleep[model] = self._asleep.get(model, 0) + 1
            return UserAnswer("", True, 0.0)
        picked = split.stable
        if split.candidate is not None and self._random.randrange(WHOLE_BP) < split.candidate_bp:
            picked = split.candidate
        arm, how = self._arm(model, picked), self._behaviours.get(picked, Behaviour())
        arm.route(how.request_bytes)
        users = self._users.setdefault(model, [0, 0, 0])
        users[0] += 1
        if self._random.random() < how.shed_frac:
            return self._shed(split, picked, arm, users, is_poison=is_poison)
        first_ms = split.limits.attempt_timeout_s * 1000
        first = self._attempt(picked, first_ms, is_poison=is_poison)
        arm.decided += 1
        arm.time(first.latency_ms, is_error=first.is_error)
        if not first.is_error:
            return UserAnswer(picked, False, first.latency_ms)
        left_ms = split.limits.timeout_s * 1000 - first.latency_ms
        again = self._second(split.stable, min(first_ms, left_ms), is_poison=is_poison)
        arm.failed += 1
        arm.saved += not again.is_error
        arm.common += again.is_error and not again.is_untold
        users[1] += again.is_error
        return UserAnswer(split.stable, again.is_error, first.latency_ms + again.latency_ms)

    def _shed(self, split: _Split, picked: str, arm: _Counts, users: list[int], *, is_poison: bool) -> UserAnswer:
        """What the candidate has no room for is asked of stable, once."""
        arm.shed += 1
        once = _Attempt(True, 0.0)
        if picked == split.candidate:
            once = self._second(split.stable, split.limits.attempt_timeout_s * 1000, is_poison=is_poison)
        users[1] += once.is_error
        users[2] += once.is_error
        return UserAnswer(picked if once.is_error else split.stable, once.is_error, once.latency_ms)

    def _second(self, stable: str, longest_ms: float, *, is_poison: bool) -> _Attempt:
        shed_frac = self._behaviours.get(stable, Behaviour()).shed_frac
        if longest_ms <= 0 or (shed_frac and self._random.random() < shed_frac):
            return _Attempt(True, 0.0, is_untold=True)
        return self._attempt(stable, longest_ms, is_poison=is_poison)

    def _attempt(self, digest: str, longest_ms: float, *, is_poison: bool) -> _Attempt:
        how, draw = self._behaviours.get(digest, Behaviour()), self._random.random
        if not how.is_up:
            return _Attempt(True, 0.0)
        if draw() < how.error_frac or is_poison:
            return _Attempt(True, 1.0)
        latency_ms = how.latency_ms * math.exp(self._random.gauss(0.0, how.spread))
        latency_ms = how.slow_ms if draw() < how.slow_frac else latency_ms
        latency_ms = math.inf if draw() < how.hang_frac else latency_ms
        is_late = latency_ms >= longest_ms
        return _Attempt(is_late, min(latency_ms, longest_ms), is_untold=is_late)

    def _arm(self, model: str, digest: str) -> _Counts:
        split = self._splits.get(model)
        return self._counts.setdefault(model, {}).setdefault((split.slot if split else 0, digest), _Counts())

    def count(
        self, model: str, digest: str, *, attempts: int, errors: int = 0, slow: int = 0, users: int | None = None
    ) -> None:
        """Requests that were made elsewhere, all drawn for this release: `slow` of them took 2 s, the others 20 ms, failures no
        time. What failed was answered by another one then.
        """
        counts = self._arm(model, digest)
        counts.decided += attempts
        counts.timed += attempts
        counts.answered += attempts - errors
        counts.failed += errors
        counts.saved += errors
        counts.route(100, attempts)
        for edge in EDGES_US:
            fast = errors + (attempts - errors - slow) * (edge > 20_000)
            under = attempts if edge > 2_000_000 else fast
            counts.latency_us[edge] += under
            counts.answered_us[edge] += under - errors
        self._users.setdefault(model, [0, 0, 0])[0] += attempts if users is None else users

    # -- TrafficCounters --------------------------------------------------------------------------------------------

    def read(
        self, *, gateway: str, admin_url: str, timeout_s: float, models: Collection[str] | None = None
    ) -> dict[str, GatewayCounters]:
        if self._fails is not None:
            raise self._fails
        if gateway in self.silent:
            raise GatewayError("unreachable", f"{gateway} cannot be reached")
        if self._frozen is None:
            read_at = self._now()
            return {model: self._counters(gateway, model, read_at) for model in (models or self._counts)}
        empty = GatewayCounters(gateway, self._epoch, self._frozen_at, {})
        return {model: self._frozen.get(model, empty) for model in (models or self._frozen)}

    @property
    def _epoch(self) -> str:
        return f"start-{self._starts}"

    def _counters(self, gateway: str, model: str, read_at: datetime) -> GatewayCounters:
        by_slot: dict[int, dict[str, ArmCounters]] = {}
        for (slot, digest), one in sorted(self._counts.get(model, {}).items()):
            by_slot.setdefault(slot, {})[digest] = one.counters()
        digests = sorted({digest for arms in by_slot.values() for digest in arms})
        whole = {digest: _sum([arms[digest] for arms in by_slot.values() if digest in arms]) for digest in digests}
        requests, errors, shed = self._users.get(model, (0, 0, 0))
        asleep = self._asleep.get(model, 0)
        return GatewayCounters(
            gateway, self._epoch, read_at, whole, requests, errors, by_slot, asleep=asleep, user_shed=shed
        )


def envoy_page(counters: Mapping[str, GatewayCounters], *, uptime_s: int) -> str:
    """The counters, by model, as an Envoy shows them to `serving.traffic.adapters.envoy_counters.EnvoyCounters`."""
    lines = [f"server.uptime: {uptime_s}"]
    for model, counted in counters.items():
        seen = sum(arm.failed - arm.saved for arm in counted.by_release.values())
        # Errors of users that belong to no release's count, once those that were shed are out.
        unseen = counted.user_errors - seen
        for slot, arms in counted.by_slot.items():
            for digest, arm in arms.items():
                refused = min(arm.shed, max(unseen, 0))  # the rest was answered by stable
                unseen -= refused
                lines += _lines_of_slot(f"model.{model}.digest.{digest}.entry.split", slot, digest, arm, refused)
        if unseen > 0:
            lines.append(
                f"sli.request.model.{model}.digest..entry.split.slot..by..tries.0.code.503.grpc..flags.UH: B1e+09(0,{unseen})"
            )
    return "\n".join([*lines, ""])


def _lines_of_slot(labels: str, slot: int, digest: str, arm: ArmCounters, refused: int) -> list[str]:
    undecided = arm.routed - arm.decided - arm.shed
    outcomes = {
        f"by.{digest}.tries.1.code.200.grpc.0.flags.-": arm.decided - arm.failed,
        "by.sha256:other.tries.2.code.504.grpc..flags.UT": arm.failed - arm.saved - arm.common,
        "by.sha256:other.tries.2.code.200.grpc.0.flags.-": arm.saved,
        "by.sha256:other.tries.2.code.500.grpc..flags.-": arm.common,
        f"by.{digest}.tries.1.code.503.grpc..flags.UO": refused,
        "by.sha256:other.tries.1.shed.gateway.code.200.grpc.0.flags.-": arm.shed - refused,
        "by..tries.0.code.408.grpc..flags.-": undecided,
    }
    # The sizes of all requests stand at one line: a reader adds up those of every line.
    sizes = " ".join(f"B{edge}(0,{count})" for edge, count in arm.size_bytes.items())
    lines = []
    for name, count in outcomes.items():
        if count:
            buckets = sizes if not lines else " ".join(f"B{edge}(0,0)" for edge in arm.size_bytes)
            lines.append(f"sli.request.{labels}.slot.{slot}.{name}: {buckets} B1e+15(0,{count})")
    failed = {edge: count - arm.answered_us.get(edge, 0) for edge, count in arm.latency_us.items()}
    took = {
        "code.200.grpc.0.flags.-": (arm.answered_us or dict.fromkeys(arm.latency_us, 0), arm.answered),
        "code.503.grpc..flags.UF": (failed, arm.timed - arm.answered),
    }
    for name, (under, count) in took.items():
        buckets = " ".join(f"B{edge / 1000:g}(0,{one})" for edge, one in under.items())
        lines.append(f"sli.latency.{labels}.try.1.slot.{slot}.{name}: {buckets} B1e+09(0,{count})")
    return lines
