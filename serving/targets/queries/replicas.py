"""How many replicas of a release an environment is to have, and which it has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, QuerySet, Subquery
from django.db.models.functions import JSONObject
from django.utils import timezone

from ledger.core.errors import NotFound
from registry.hooks.usage import usages_of
from registry.models import Release
from registry.queries.declared import Declared, declared_replicas
from serving.environments.core.lifecycle import LIVE, ReplicaState
from serving.environments.core.replicas import ReplicaStatus, ReplicaStep, desired_replicas, steps_to
from serving.environments.queries.inventory import answering_servers, live_replicas
from serving.environments.queries.reporting import is_reporting
from serving.models import Environment, Replica, ReplicaTarget

#: Of whom a release's uses are not asked where servers are looked at: an alias needs none, and routes are looked at themselves.
NOT_ASKED = frozenset({"serving", "aliases"})

Key = tuple[UUID, int]  # release, environment


@dataclass(frozen=True)
class Scaled:
    """How many replicas somebody asked for, as a `ReplicaTarget` has it."""

    replicas: int
    version: int
    reason: str
    changed_by: str
    changed_at: datetime


@dataclass(frozen=True)
class ReplicaPlan:
    """A release in an environment: how many replicas it is to have, those that it has, and what is to be done now.

    `declared` by its envelope. `said`: None where nobody said how many.
    """

    release: Release
    environment: Environment
    wanted: int
    declared: Declared
    said: Scaled | None
    replicas: tuple[ReplicaStatus, ...]
    steps: tuple[ReplicaStep, ...]

    @property
    def version(self) -> int:
        """Of what was said; 0 where nobody said anything."""
        return self.said.version if self.said else 0

    @property
    def reason(self) -> str:
        return self.said.reason if self.said else ""

    @property
    def changed_by(self) -> str:
        return self.said.changed_by if self.said else ""

    @property
    def answering(self) -> int:
        """Replicas that are to stay and are known to answer."""
        return sum(one.answers and not one.is_silent and not one.is_leaving for one in self.replicas)


def replica_plans(environment: Environment | None = None, release: Release | None = None) -> list[ReplicaPlan]:
    """Of every release with a replica that is to stay, in environments with gateways: what a gate measures is one server. Two
    queries, however many there are."""
    rows = observed(live_replicas())
    rows = rows if environment is None else rows.filter(environment=environment)
    rows = rows if release is None else rows.filter(release=release)
    return plans_of(rows.order_by("pk"))


def replica_of(release: Release, key: int) -> Replica:
    """One of the release's replicas by its key. Raises NotFound."""
    found = live_replicas().filter(release=release, pk=key).first()
    if found is None:
        message = f"{release.model.slug} {release.name} has no replica {key} now."
        raise NotFound("no_such_deployment", message, replica=key)
    return found


def observed(replicas: QuerySet[Replica]) -> QuerySet[Replica]:
    """The replicas with two columns for `plans_of`: whether each `answers`, and the `said` number of replicas."""
    servers = answering_servers().order_by().filter(replica=OuterRef("pk"))
    columns = {name: name for name in ("replicas", "version", "reason", "changed_by", "changed_at")}
    scale = ReplicaTarget.objects.filter(release=OuterRef("release"), environment=OuterRef("environment"))
    return replicas.annotate(answers=Exists(servers), said=Subquery(scale.values(told=JSONObject(**columns))[:1]))


def plans_of(replicas: Iterable[Any]) -> list[ReplicaPlan]:
    """One plan for each release and environment of these `observed` replicas that has some. One query, where an envelope is
    not known yet; some more, where one is being drained."""
    by_place: dict[Key, list[Any]] = {}
    for one in replicas:
        if one.environment.is_routed and one.state in LIVE:
            by_place.setdefault((one.release_id, one.environment_id), []).append(one)
    by_place = {key: every for key, every in by_place.items() if any(one.is_wanted for one in every)}
    declared = declared_replicas(release for release, _ in by_place) if by_place else {}
    asked = {one.release_id for every in by_place.values() for one in every if one.drain_asked_at and one.is_wanted}
    used = usages_of(asked, but=NOT_ASKED) if asked else {}
    return [_plan(every, declared[key[0]], is_used=key[0] in used) for key, every in by_place.items()]


def _plan(every: Sequence[Any], declared: Declared, *, is_used: bool) -> ReplicaPlan:
    """`is_used`: by a rollout or an undo window. What is drained waits for its end, and stays as long,
    unless its ordinal was given away."""
    given = {one.ordinal for one in every if one.is_wanted and one.drain_asked_at is None}
    now = timezone.now()
    replicas = tuple(
        ReplicaStatus(
            one.pk,
            one.ordinal,
            one.node_id,
            answers=one.answers,
            has_failed=one.state == ReplicaState.FAILED,
            is_leaving=not one.is_wanted or (one.drain_asked_at is not None and (one.ordinal in given or not is_used)),
            is_silent=not is_reporting(one.node, now),
            is_set_aside=one.is_set_aside,
        )
        for one in every
    )
    first = every[0]
    said = (
        Scaled(**{**first.said, "changed_at": datetime.fromisoformat(first.said["changed_at"])}) if first.said else None
    )
    wanted = desired_replicas(said.replicas if said else None, declared.least)
    steps = tuple(steps_to(wanted, replicas))
    return ReplicaPlan(first.release, first.environment, wanted, declared, said, replicas, steps)


def desired_by_place(replicas: Iterable[Any]) -> dict[Key, int]:
    """How many are wanted of each of these `observed` replicas' releases, where each is. One query, where an envelope is not
    known yet."""
    rows = list(replicas)
    declared = declared_replicas(one.release_id for one in rows) if rows else {}
    return {
        (one.release_id, one.environment_id): desired_replicas(
            one.said["replicas"] if one.said else None, declared[one.release_id].least
        )
        if one.environment.is_routed
        else 1
        for one in rows
    }
