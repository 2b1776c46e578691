"""The routing table of an environment, and the checks it must pass before it reaches a gateway.

The table is made whole from the database every time. `admit` stands between the database and the gateways: a table that
lost everything, or went back in time, is refused; a stable release that lost its last server keeps its last known one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil

from registry.core.kinds import DEFAULT, KINDS
from registry.core.kinds.kind import Calls
from serving.environments.core.addresses import Address
from serving.environments.core.lifecycle import ReplicaState
from serving.traffic.core.asleep import PREPARING_AGAIN_S, Asleep
from serving.traffic.core.request_classes import ONE_POOL, Pool, RequestClasses
from serving.traffic.core.request_limits import Limits
from serving.traffic.core.tenants import Tenants

#: Requests that one server may have in flight for each of its model instances, where its release declares no bound of its
#: own. Source: `python -m benchmarks.bound_sweep`, whose table is in docs/operations.md.
IN_FLIGHT_PER_INSTANCE = 8
#: A release of which nothing is proven fills its bound, while it is well, with answers that take no longer than this, in seconds.
WELL_WITHIN_S = 0.125
#: A candidate's in-flight bound is at most this multiple of its own: a slower release keeps more requests in flight.
MOST_TIMES = 16
#: Bytes of one request to a model whose releases declare nothing: a batch of 25 RGB images of 224 × 224 in FP32.
#: A hundred callers who send all but the last byte hold 1.6 GB of a gateway's memory.
REQUEST_BYTES = 16 * 2**20

#: Weights are basis points and always sum to this, so that a sticky share that grows keeps the callers it had.
WHOLE_BP = 10_000
#: Requests are labelled with the number of their route's last change, modulo this: a gateway never forgets a label.
SLOTS = 4


class TableRefused(Exception):
    """A table that must not reach a gateway. The message says why and what to do."""


@dataclass(frozen=True, order=True)
class ServerAddress:
    """Where one server listens, and what its clients speak (`registry.core.kinds.spoken_by`)."""

    host: str
    http_port: int
    grpc_port: int
    speaks: str = ""


Known = Mapping[str, tuple[ServerAddress, ...]]  # servers by digest


def digest12(digest: str) -> str:
    """The first twelve hexadecimal digits of a `sha256:` digest."""
    return digest.removeprefix("sha256:")[:12]


def release_clusters(model: str, digest: str) -> dict[str, str]:
    """By protocol, what gateways call the servers of a release: `<model>_<digest12>_<protocol>`.

    Never with a dot: names of statistics are split at dots.
    """
    return {protocol: f"{model}_{digest12(digest)}_{protocol}" for protocol in ("http", "grpc")}


def class_cluster(cluster: str, pool: str) -> str:
    """What gateways call a class's places on the servers of a release: those of the default class have the release's own name."""
    return f"{cluster}-{pool}" if pool else cluster


@dataclass(frozen=True)
class Arm:
    """A release and the servers that answer for it, all of one `kind`. `name` is r14; `digest` is sha256:<64 hex>.

    `max_in_flight`: requests that one of its servers may have at once, from all gateways and over both protocols.
    `max_request_bytes`: of one body. `has_streams`: over gRPC. `max_batch`: items of one request; 0 without a batch axis.
    `well_within_s`: while it is well, what fills `max_in_flight` is answered within it; proven, where that bound is.
    """

    name: str
    digest: str
    endpoints: tuple[ServerAddress, ...] = ()
    max_in_flight: int = IN_FLIGHT_PER_INSTANCE
    max_request_bytes: int = REQUEST_BYTES
    has_streams: bool = False
    max_batch: int = 0
    well_within_s: float = WELL_WITHIN_S
    kind: str = DEFAULT

    def __post_init__(self) -> None:
        for bound, of in ((self.max_in_flight, "requests in flight"), (self.max_request_bytes, "bytes")):
            if bound < 1:
                raise ValueError(f"{self.name}: with {bound} {of} it would never be asked")
        if not self.well_within_s > 0:
            raise ValueError(f"{self.name}: nothing is answered within {self.well_within_s} s")

    @property
    def digest12(self) -> str:
        """The first 12 hex digits: short enough for a cluster's name, long enough to be alone in a model."""
        return digest12(self.digest)


@dataclass(frozen=True)
class Prober:
    """Where the prober takes mirrored requests, HTTP and gRPC alike, and the secret that it knows a gateway by."""

    address: Address
    secret: str = field(default="", repr=False)

    @classmethod
    def at(cls, address: str, secret: str = "") -> Prober | None:
        """From host:port or unix:/path; None where there is none. Raises ValueError for anything else."""
        if not address:
            return None
        try:
            return cls(Address.at(address), secret)
        except ValueError as error:
            raise ValueError(f"the prober's address {error}") from None


@dataclass(frozen=True)
class ModelRoute:
    """One model's traffic. `others` are releases that a request may force and the split never picks.

    `mirror_bp` of the split's inference requests are copied to the prober, whose answers nobody sees. `gateways` share the
    servers and what may be in flight on them. Requests that took `slow_ms` or longer are told one by one; None: slow ones are not.
    """

    route_id: int
    model: str
    generation: int
    stable: Arm
    candidate: Arm | None = None
    candidate_bp: int = 0
    others: tuple[Arm, ...] = ()
    limits: Limits = field(default_factory=Limits)
    mirror_bp: int = 0
    prober: Prober | None = None
    slot: int = 0  # in [0, SLOTS): the label of requests that begin under this route
    gateways: int = 1
    slow_ms: float | None = None
    tenants: Tenants | None = None  # whose requests are let through; everybody's where nothing is stated
    classes: RequestClasses | None = None  # each with places of its own; shared by all where nothing is stated
    is_idempotent: bool = True  # a request may be asked twice; else it is neither retried once it was sent nor mirrored
    retries_resets: bool = False  # asks again what was in flight on a server that died, of which it may have died
    asleep: Asleep | None = None  # the gateway answers for the model
    refuses_forced: bool = False  # no request forces a release, though the environment allows it
    is_stable_lost: bool = False  # stable's endpoints are its last known ones: no server is known to serve there

    def __post_init__(self) -> None:
        if self.gateways < 1:
            raise ValueError(f"{self.model}: {self.gateways} gateways cannot share it")
        for what, bp in (("candidate weight", self.candidate_bp), ("mirrored share", self.mirror_bp)):
            if not 0 <= bp <= WHOLE_BP:
                raise ValueError(f"{self.model}: a {what} of {bp} bp is not between 0 and {WHOLE_BP}")
            if bp and self.candidate is None:
                raise ValueError(f"{self.model}: a {what} without a candidate")

    @property
    def split(self) -> tuple[tuple[Arm, int], ...]:
        """(arm, basis points), the candidate first; sums to WHOLE_BP."""
        if self.candidate is None:
            return ((self.stable, WHOLE_BP),)
        return ((self.candidate, self.candidate_bp), (self.stable, WHOLE_BP - self.candidate_bp))

    @classmethod
    def preparing(cls, model: str, model_id: int, arm: Arm, state: ReplicaState = ReplicaState.LOADING) -> ModelRoute:
        """Of a model that has no route yet, whose newest release has a replica in `state`. Its number is no route's."""
        after_s = None if state is ReplicaState.FAILED else PREPARING_AGAIN_S
        asleep = Asleep(after_s, is_preparing=True, is_loaded=state is ReplicaState.READY)
        return cls(-model_id, model, 0, arm, asleep=asleep)

    @property
    def is_preparing(self) -> bool:
        return self.asleep is not None and self.asleep.is_preparing

    @property
    def is_ready(self) -> bool:
        """Whether a server is known to serve the release that requests go to, stable unless all are the candidate's."""
        if self.asleep is not None:
            return False
        if self.candidate is not None and self.candidate_bp == WHOLE_BP:
            return bool(self.candidate.endpoints)
        return bool(self.stable.endpoints) and not self.is_stable_lost

    @property
    def has_spare(self) -> bool:
        """Whether the candidate's servers can stand in for stable's."""
        return self.candidate is not None and self.candidate.digest != self.stable.digest

    @property
    def uses_spare(self) -> bool:
        """Whether they do while no server of stable's accepts a connection: only if the candidate has traffic."""
        return self.has_spare and self.candidate_bp > 0

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The places of each class of requests, those of the default one first."""
        return self.classes.pools if self.classes else ONE_POOL

    @property
    def is_mirrored(self) -> bool:
        """Whether there is something to mirror that may be, and somebody who takes it."""
        return self.mirror_bp > 0 and self.prober is not None and self.is_idempotent

    @property
    def has_another(self) -> bool:
        """Whether what one server did not answer can be asked of another one."""
        return self.candidate is not None or len(self.stable.endpoints) > 1

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Every release that a request can reach, each once."""
        return (*(arm for arm, _ in self.split), *self.others)

    @property
    def max_request_bytes(self) -> int:
        """Of any request of this model: the largest that one of its releases takes. What is too large for the candidate alone is
        answered by stable as before, and is the candidate's failure, not its callers'."""
        return max(arm.max_request_bytes for arm in self.arms)

    @property
    def max_batch(self) -> int:
        """Items of one request: the most that one of its releases takes; 0 where one has no batch axis, whose first size may be any."""
        most = [arm.max_batch for arm in self.arms]
        return max(most) if all(most) else 0

    @property
    def calls(self) -> Calls:
        """Of stable's server kind, which the model's callers use."""
        return KINDS[self.stable.kind].calls

    @property
    def has_streams(self) -> bool:
        """Whether every release that the split picks asks for gRPC streams."""
        return all(arm.has_streams for arm, _ in self.split)

    def in_flight(self, arm: Arm, share_pct: int = 100) -> int:
        """Requests that one gateway may have in flight on `arm` over one protocol, at least 1. `share_pct`: of one class of them.

        What all its servers may have is divided among the gateways and the kind's protocols, each share rounded up: however
        requests are mixed, the servers never have more than that (by rounding, one more for each share).

        The candidate is allowed what would hang there if it stopped answering at the rate at which it was well, up to
        `MOST_TIMES` its bound: what stable answers in its place is no evidence. Stable's own bound protects stable.
        """
        of_all = arm.max_in_flight * max(len(arm.endpoints), 1)
        if arm is self.candidate:
            of_all = ceil(of_all * min(max(self.limits.attempt_timeout_s / arm.well_within_s, 1.0), MOST_TIMES))
        return self._share(of_all, share_pct)

    def in_stables_place(self, candidate: Arm, share_pct: int = 100) -> int:
        """Requests of stable's that one gateway may have in flight on the candidate over one protocol, at least 1."""
        return self._share(candidate.max_in_flight * max(len(candidate.endpoints), 1), share_pct)

    def _share(self, of_all: int, share_pct: int) -> int:
        return ceil(of_all * share_pct / (100 * self.gateways * len(self.calls.protocols)))


@dataclass(frozen=True)
class RoutingTable:
    """All routes of one environment at one generation. `unknown`: models that are routed, though nobody could make out how: gateways
    keep what they have of them."""

    environment: str
    generation: int
    forced_key: str = field(default="", repr=False)  # key of requests that force a release; empty: forcing is off
    models: tuple[ModelRoute, ...] = ()
    unknown: frozenset[str] = frozenset()

    @cached_property
    def has_routes(self) -> bool:
        """Whether any model has a route; a model that is being prepared has none."""
        return any(not route.is_preparing for route in self.models)

    @cached_property
    def watched(self) -> frozenset[str]:
        """Digests of the releases that stand beside each other in a split, for which examples of requests are kept."""
        return frozenset(arm.digest for route in self.models if route.candidate for arm, _ in route.split)

    def route(self, model: str) -> ModelRoute | None:
        return self._by_model.get(model)

    @cached_property
    def _by_model(self) -> dict[str, ModelRoute]:
        return {route.model: route for route in self.models}


@dataclass(frozen=True)
class RouteProblem:
    """What was corrected in one model's route. `is_withheld`: this generation of its route was not published."""

    route_id: int
    model: str
    generation: int
    message: str
    is_withheld: bool


@dataclass(frozen=True)
class Admission:
    """The table to publish, and what had to be corrected in it."""

    table: RoutingTable
    problems: tuple[RouteProblem, ...] = ()


def admit(proposed: RoutingTable, last: RoutingTable | None, known: Known | None = None) -> Admission:
    """`proposed` made safe to publish after `last` (None: nothing published yet).

    `known` maps a release's digest to servers that have not ended, though they do not serve now: the best address
    there is for a stable release that has lost its last healthy server.

    Raises TableRefused when the table is empty where traffic was routed before, or older than `last`.
    """
    if last is not None and proposed.generation < last.generation:
        raise TableRefused(
            f"{proposed.environment}: the database is at generation {proposed.generation}, gateways already have "
            f"{last.generation}; is this a stale copy? Point DATABASE_URL at the primary, or restart the control plane "
            "to accept it."
        )
    if not proposed.has_routes and (proposed.generation > 0 or (last is not None and last.has_routes)):
        raise TableRefused(
            f"{proposed.environment}: the database has no routes at generation {proposed.generation}, though traffic "
            "was routed before; gateways keep what they have. Restore the routes."
        )
    claimed: dict[ServerAddress, str] = {}
    if not all(route.stable.endpoints for route in proposed.models):
        arms = [arm for route in proposed.models for arm in route.arms]
        claimed = {endpoint: arm.digest for arm in arms for endpoint in arm.endpoints}
    routes, problems = [], []
    for route in proposed.models:
        before = last.route(route.model) if last and not route.stable.endpoints else None
        kept, problem = _admit_route(route, before, known or {}, claimed)
        routes.append(kept)
        problems += [problem] if problem else []
        if kept.mirror_bp and not kept.is_mirrored:
            problems.append(_unmirrored(kept))
    return Admission(replace(proposed, models=tuple(routes)), tuple(problems))


def _unmirrored(route: ModelRoute) -> RouteProblem:
    why = (
        "its traffic policy says that no request may be asked twice (idempotent: false); nothing is mirrored. Take the shadow stage "
        "out of its rollout policy."
        if not route.is_idempotent
        else "this control plane knows no prober; nothing is mirrored. Set SLUICEGATE_PROBER_ADDRESS to the prober's host:port, or "
        "unix:/path."
    )
    message = f"{route.model}: {route.mirror_bp / 100:g} % of its requests should be mirrored, and {why}"
    return RouteProblem(route.route_id, route.model, route.generation, message, is_withheld=False)


def _admit_route(
    route: ModelRoute,
    before: ModelRoute | None,
    known: Known,
    claimed: Mapping[ServerAddress, str],
) -> tuple[ModelRoute, RouteProblem | None]:
    stable = route.stable
    if stable.endpoints or route.asleep:
        return route, None

    def note(message: str, *, is_withheld: bool) -> RouteProblem:
        return RouteProblem(route.route_id, route.model, route.generation, message, is_withheld)

    last_known = _last_endpoints(stable.digest, before, known, claimed)
    if last_known:
        where = ", ".join(f"{endpoint.host}:{endpoint.http_port}" for endpoint in last_known)
        message = f"stable {stable.name} has no healthy server; its last address {where} is kept. Bring a server back."
        kept = replace(route, stable=replace(stable, endpoints=last_known), is_stable_lost=True)
        return kept, note(message, is_withheld=False)
    if before is not None and before.stable.digest != stable.digest and before.stable.endpoints:
        message = (
            f"stable {stable.name} has no server, so generation {route.generation} is not published; gateways keep "
            f"{before.stable.name} as stable. Bring up a server for {stable.name} or route back."
        )
        return replace(before, route_id=route.route_id), note(message, is_withheld=True)
    return route, note(f"stable {stable.name} has no server: requests fail until one is ready.", is_withheld=False)


def _last_endpoints(
    digest: str, before: ModelRoute | None, known: Known, claimed: Mapping[ServerAddress, str]
) -> tuple[ServerAddress, ...]:
    """The last addresses of a stable release that no other release has taken over since: a freed port may be anybody's.

    A release that becomes stable now must have a server that lives: otherwise the one before it stays.
    """
    candidates: Iterable[ServerAddress] = known.get(digest, ())
    if not candidates and before is not None and before.stable.digest == digest:
        candidates = before.stable.endpoints
    return tuple(sorted(endpoint for endpoint in candidates if claimed.get(endpoint, digest) == digest))
