"""How many replicas of a release an environment is to have, and which it has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.utils import timezone

from registry.models import Release
from registry.queries import manifests_of
from serving.core.lifecycle import DeploymentState
from serving.core.replicas import Replica, ReplicaStep, steps_to, wanted_of
from serving.models import Deployment, Environment, Node, Scale
from serving.queries.deployments import answering_servers, live_deployments

#: A node whose agent was silent for so long is taken for lost: its replicas are placed elsewhere. Ten heartbeats and more, so that
#: an agent that is restarted, or a database that is away for a while, moves nothing.
LOST_AFTER = timedelta(seconds=60)

Key = tuple[UUID, int]  # release, environment


@dataclass(frozen=True)
class Declared:
    """Of an envelope's `lifecycle.replicas`; None: not declared."""

    least: int | None = None
    most: int | None = None


@dataclass(frozen=True)
class ReplicaPlan:
    """A release in an environment: how many replicas it is to have, those that it has, and what is to be done now.

    `declared` by its envelope. `scale`: what somebody said; None where nobody did.
    """

    release: Release
    environment: Environment
    wanted: int
    declared: Declared
    scale: Scale | None
    replicas: tuple[Replica, ...]
    steps: tuple[ReplicaStep, ...]

    @property
    def answering(self) -> int:
        """Those that answer and are to stay."""
        return sum(one.answers and not one.is_leaving for one in self.replicas)


def replica_plans(environment: Environment | None = None, release: Release | None = None) -> list[ReplicaPlan]:
    """Of every release with a replica that is to stay, in environments with gateways: what a gate measures is one server. Five
    queries, however many there are."""
    rows = live_deployments().filter(environment__is_routed=True).defer("release__manifest").order_by("pk")
    rows = rows if environment is None else rows.filter(environment=environment)
    rows = rows if release is None else rows.filter(release=release)
    mine: dict[Key, list[Deployment]] = {}
    for one in rows:
        mine.setdefault((one.release_id, one.environment_id), []).append(one)
    mine = {key: every for key, every in mine.items() if any(one.is_wanted for one in every)}
    if not mine:
        return []
    rows_of_scale = Scale.objects.filter(release__in={release for release, _ in mine})
    scales = {(one.release_id, one.environment_id): one for one in rows_of_scale}
    here = [one.pk for every in mine.values() for one in every]
    answering = set(answering_servers().filter(deployment__in=here).values_list("deployment_id", flat=True))
    lost, declared = lost_nodes(), declared_replicas(release for release, _ in mine)
    return [_plan(every, declared[key[0]], scales.get(key), lost, answering) for key, every in mine.items()]


def _plan(
    every: list[Deployment], declared: Declared, scale: Scale | None, lost: Iterable[str], answering: set[int]
) -> ReplicaPlan:
    crowd = Counter(one.node_id for one in every if one.is_wanted)
    replicas = tuple(
        Replica(
            one.pk,
            one.slot,
            one.node_id,
            answers=one.pk in answering,
            has_failed=one.state == DeploymentState.FAILED,
            is_leaving=not one.is_wanted or one.drain_asked_at is not None,
            is_lost=one.node_id in lost,
            crowd=crowd[one.node_id],
        )
        for one in every
    )
    wanted = wanted_of(scale.replicas if scale else None, declared.least)
    first = every[0]
    return ReplicaPlan(
        first.release, first.environment, wanted, declared, scale, replicas, tuple(steps_to(wanted, replicas))
    )


def wanted_replicas(deployments: Iterable[Deployment]) -> dict[Key, int]:
    """How many are wanted of each of these deployments' releases, where each is. Two queries."""
    mine = [(one.release_id, one.environment_id, one.environment.is_routed) for one in deployments]
    rows = Scale.objects.filter(release__in={release for release, _, _ in mine})
    scaled = {(one.release_id, one.environment_id): one.replicas for one in rows}
    declared = declared_replicas(release for release, _, _ in mine)
    return {
        (release, where): wanted_of(scaled.get((release, where)), declared[release].least) if is_routed else 1
        for release, where, is_routed in mine
    }


#: A sealed release never changes, and its manifest may be megabytes: each is read once.
_DECLARED: dict[UUID, Declared] = {}
_MOST_KNOWN = 10_000


def declared_replicas(releases: Iterable[UUID]) -> dict[UUID, Declared]:
    """What each of these releases declares. One query, where some are not known yet."""
    asked = set(releases)
    known = {key: _DECLARED[key] for key in asked if key in _DECLARED}
    unknown = asked - known.keys()
    found = {key: _declared(text) for key, text in manifests_of(unknown).items()} if unknown else {}
    if len(_DECLARED) + len(found) > _MOST_KNOWN:
        _DECLARED.clear()
    _DECLARED.update(found)
    return {key: Declared() for key in asked} | known | found


def _declared(manifest: str) -> Declared:
    document = json.loads(manifest or "{}")
    said = ((document.get("envelope") or {}).get("lifecycle") or {}).get("replicas") or {}
    return Declared(said.get("min"), said.get("max"))


def lost_nodes() -> set[str]:
    """Nodes of which nothing has been heard for `LOST_AFTER`. None at all where nobody was heard of: then it is not the nodes that
    are lost, but whoever looks."""
    since = timezone.now() - LOST_AFTER
    heard = dict(Node.objects.values_list("name", "seen_at"))
    lost = {name for name, at in heard.items() if at is None or at < since}
    return set() if len(lost) == len(heard) else lost
