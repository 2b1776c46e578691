"""Whom to probe: every live rollout, with the servers of its releases and how their answers are compared."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog
from django.db.models import Count, OuterRef, Subquery

from ledger.core.errors import DomainError
from registry.core.kinds import spoken_by
from registry.models import Release, ServedModel
from registry.queries import manifest_of, model_by_id
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.shadow import Rule
from rollouts.models import Mismatch, Rollout
from serving.traffic.core.routes import ServerAddress
from serving.traffic.queries.endpoints import answering
from serving.traffic.queries.routes import all_routes, routes_between
from serving.traffic.queries.time_limits import limits_of
from validators.core.contract import tensors_of
from validators.core.policy import Policy, stored_policy
from validators.queries.model_policy import policy_of

log = structlog.get_logger(__name__)
#: Retry interval for what could not be read, such as a manifest while the database was away.
RETRY_S = 60.0
_STATES = sorted(state.value for state in LIVE)


@dataclass(frozen=True)
class Arm:
    """One release of a rollout, as it is asked."""

    name: str
    serving: Mapping[str, Any]  # of its manifest
    speaks: str = ""  # `registry.core.kinds.spoken_by`


@dataclass(frozen=True)
class Profile:
    """What of a rollout does not change while it lasts. `examples` is how many mismatches are written already."""

    rollout_id: int
    model: str
    model_id: int
    candidate: Arm
    stable: Arm | None
    gates: Policy
    timeout_s: float
    rule: Rule
    examples: int
    proven_in: int | None = None  # the candidate's gate run


@dataclass(frozen=True)
class Target:
    """A rollout and the servers that answer now. `route_id` is the name in mirrored requests; None without a route."""

    profile: Profile
    route_id: int | None
    candidate: tuple[ServerAddress, ...]
    stable: tuple[ServerAddress, ...]

    @property
    def rollout_id(self) -> int:
        return self.profile.rollout_id


Row = tuple[int, int, int, Any, Any]


def live_rollouts() -> list[Row]:
    """(key, environment, model, candidate, stable) of each live rollout."""
    rows = Rollout.objects.filter(state__in=_STATES).order_by("pk")
    return list(rows.values_list("pk", "environment_id", "model_id", "candidate_id", "stable_id"))


def promotions() -> list[Row]:
    """Likewise of the promotion that each stable release came by."""
    there = Rollout.objects.filter(environment=OuterRef("environment"), model=OuterRef("model"))
    came_by = there.filter(candidate=OuterRef("stable"), state=RolloutState.PROMOTED).order_by("-pk")
    columns = {name: Subquery(came_by.values(name)[:1]) for name in ("pk", "stable")}
    found = all_routes().annotate(came_by=columns["pk"], before=columns["stable"]).filter(came_by__isnull=False)
    return list(found.values_list("came_by", "environment_id", "model_id", "stable_id", "before"))


class Targets:
    """Reads them anew each second; what does not change is read once. Three queries for any number of rollouts."""

    def __init__(self, rows: Callable[[], list[Row]] = live_rollouts) -> None:
        self._rows = rows
        self._profiles: dict[int, Profile] = {}
        self._unreadable: dict[int, float] = {}  # when each is tried again, in monotonic seconds

    def read(self) -> list[Target]:
        rows = self._rows()
        live, now = {row[0] for row in rows}, time.monotonic()
        self._unreadable = {pk: at for pk, at in self._unreadable.items() if pk in live and at > now}
        self._load(live - self._profiles.keys() - self._unreadable.keys())
        self._profiles = {pk: one for pk, one in self._profiles.items() if pk in live}
        routes = {
            (route.environment_id, route.model_id): route.pk
            for route in routes_between({row[2] for row in rows}, {row[1] for row in rows})
        }
        servers = _servers({one for row in rows for one in row[3:] if one})
        return [
            Target(
                self._profiles[pk],
                routes.get((environment, model)),
                _spoken_to(servers[environment, candidate], self._profiles[pk].candidate),
                _spoken_to(servers[environment, stable], self._profiles[pk].stable),
            )
            for pk, environment, model, candidate, stable in rows
            if pk in self._profiles
        ]

    def _load(self, pks: set[int]) -> None:
        if not pks:
            return
        there = dict(Mismatch.objects.filter(rollout__in=pks).values_list("rollout").annotate(Count("pk")))
        rollouts = Rollout.objects.filter(pk__in=pks).defer("engine_state")
        for rollout in rollouts.select_related("model", "candidate", "stable", "report__gate_run"):
            try:
                self._profiles[rollout.pk] = _profile(rollout, there.get(rollout.pk, 0))
            except (DomainError, ValueError, KeyError, TypeError) as error:
                log.warning("rollout_not_probed", rollout=rollout.pk, error=str(error))
                self._unreadable[rollout.pk] = (
                    time.monotonic() + RETRY_S
                )  # one odd row must not blind the prober to the others


def _profile(rollout: Rollout, examples: int) -> Profile:
    gates = _gates(rollout)
    candidate = _arm(rollout.candidate)
    return Profile(
        rollout_id=rollout.pk,
        model=rollout.model.slug,
        model_id=rollout.model_id,
        candidate=candidate,
        stable=_arm(rollout.stable) if rollout.stable else None,
        gates=gates,
        timeout_s=limits_of(rollout.model).attempt_timeout_s,
        rule=rule_of(gates, candidate.serving),
        examples=examples,
        proven_in=rollout.report.gate_run_id if rollout.report else None,
    )


def _gates(rollout: Rollout) -> Policy:
    """The gate policy that the candidate was proven under; without a report, the model's own."""
    return stored_policy(rollout.report.gate_run.policy) if rollout.report else policy_of(rollout.model)


def _arm(release: Release) -> Arm:
    manifest = manifest_of(release)
    return Arm(release.name, manifest["serving"], spoken_by(manifest))


def _spoken_to(endpoints: tuple[ServerAddress, ...], arm: Arm | None) -> tuple[ServerAddress, ...]:
    return tuple(replace(one, speaks=arm.speaks) for one in endpoints) if arm else ()


def rule_of(gates: Policy, serving: Mapping[str, Any]) -> Rule:
    """Compares classes if the golden policy defines labels, else values."""
    golden, outputs = gates.of("golden"), tensors_of(serving, "outputs")
    says_so = golden["compare"] == "label" and bool(golden["set"] or golden["labels"])
    named = [tensor.name for tensor in outputs if tensor.name == golden["output"]]
    alone = [outputs[0].name] if len(outputs) == 1 and golden["output"] is None else []
    return Rule(
        answer=(named or alone or [""])[0] if says_so else "",
        labels=tuple(golden["labels"] or ()),
        has_batch_axis=int(serving["max_batch_size"]) > 0,
        data_types={tensor.name: tensor.data_type for tensor in outputs},
    )


def model_of(profile: Profile) -> ServedModel:
    return model_by_id(profile.model_id)


def _servers(releases: set[Any]) -> defaultdict[tuple[int, Any], tuple[ServerAddress, ...]]:
    """Addresses that answer real inferences, by (environment, release)."""
    found: defaultdict[tuple[int, Any], tuple[ServerAddress, ...]] = defaultdict(tuple)
    rows = answering().filter(release__in=releases).order_by("pk")
    for one in rows:
        if one.host is not None and one.http_port is not None and one.grpc_port is not None:
            key = (one.environment_id, one.release_id)
            found[key] = (*found[key], ServerAddress(one.host, one.http_port, one.grpc_port))
    return found
