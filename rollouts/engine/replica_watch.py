"""Every stable release in replicas, rollout or not: one of its servers that fails where the others do not is told by an event.

It moves nothing: a person, or the next rollout, replaces it. What gateways counted in each stretch of ten minutes is looked at once.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import structlog
from django.db import close_old_connections, connection, transaction
from django.utils import timezone

from accounts.core.access import Actor
from ledger.actions import append_event
from ledger.queries import events
from rollouts.core.evidence import Tolerance
from rollouts.core.odd_replica import OddReplica, odd_beside_others
from rollouts.core.presets import ROLL_BACK_OVER
from rollouts.engine.odd_replicas import ByGateway, counted_by_server
from rollouts.engine.stable_replicas import tallies_since
from serving.models import Deployment, Gateway, Route
from serving.ports import HostCounters
from serving.queries import gateways_in
from serving.queries.answering import NONE_SERVING, deployment_by_name, serving_of
from serving.queries.routes import all_routes

log = structlog.get_logger(__name__)
VERB = "deployment.differs"
EVERY_S, STRETCH_S = 30.0, 600.0
READ_TIMEOUT_S = 1.0
#: Of stable releases in replicas so many are watched at a time, for so long; then the others take their turn.
AT_ONCE, IN_TURN_S = 100, 2 * STRETCH_S
#: The chance to name one of replicas that are alike, for one look: 144 a day and model.
CHANCE = 1e-6
#: Nobody measures here how failures clump: they are taken to come eight at once, as the longest batches do.
CLUMP = 8.0
#: What is told of a replica is not told again for so long.
QUIET = timedelta(days=1)
TOLERATED = Tolerance(**ROLL_BACK_OVER["standard"]["errors"])


class _Begun(NamedTuple):
    """What the gateways had counted of a stable release at `at` (monotonic seconds)."""

    stable: str
    at: float
    counts: ByGateway


class ReplicaWatch:
    """Runs in a thread of its own, so that it never delays a tick. `leads` says whether this engine leads, and for so many seconds more."""

    def __init__(self, hosts: HostCounters, leads: Callable[[float], bool]) -> None:
        self.hosts, self.leads = hosts, leads
        self._begun: dict[int, _Begun] = {}  # by route
        self._turn: set[int] = set()  # routes that are watched now, where they are too many at once
        self._turned_at, self._last = -IN_TURN_S, 0

    def run(self, stopping: threading.Event) -> None:
        """Until `stopping` is set."""
        while not stopping.wait(EVERY_S):
            try:
                if self.leads(0.0):
                    self.turn(time.monotonic())
                else:
                    self._begun.clear()
            except Exception:  # nothing of this may end the engine
                log.warning("replica_watch_failed", traceback=traceback.format_exc())
                self._begun.clear()
                close_old_connections()
        connection.close()

    def turn(self, now: float) -> None:
        """Begins stretches, and looks at those that are over. `now` in monotonic seconds."""
        found = list(all_routes())
        serving = serving_of({str(route.stable_id) for route in found})
        places = {route.pk: (route.environment_id, str(route.stable_id)) for route in found}
        many = {pk for pk, place in places.items() if serving.get(place, NONE_SERVING).count > 1}
        routes = self._in_turn([route for route in found if route.pk in many or route.pk in self._begun], now)
        begun, self._begun = self._begun, {}
        gateways = gateways_in({route.environment_id for route in routes})
        for route in routes:
            before = begun.get(route.pk)
            if before is not None and before.stable == route.stable.digest and now - before.at < STRETCH_S:
                self._begun[route.pk] = before
            elif route.pk in many:
                self._look(route, gateways.get(route.environment_id, []), before, now)

    def _in_turn(self, routes: list[Route], now: float) -> list[Route]:
        """All, or those whose turn it is, by their keys, as which are in replicas changes."""
        if len(routes) <= AT_ONCE:
            return routes
        if now - self._turned_at >= IN_TURN_S:
            chosen = ([one for one in routes if one.pk > self._last] + routes)[:AT_ONCE]
            self._last, self._turn, self._turned_at = chosen[-1].pk, {one.pk for one in chosen}, now
        return [one for one in routes if one.pk in self._turn]

    def _look(self, route: Route, gateways: list[Gateway], before: _Begun | None, now: float) -> None:
        digest, model = str(route.stable.digest), route.model.slug
        counts = counted_by_server(self.hosts, model, route.stable, gateways, READ_TIMEOUT_S)
        self._begun[route.pk] = _Begun(digest, now, counts)
        if before is None or before.stable != digest:
            return
        tallies = tallies_since(before.counts, counts, route.stable_id, route.environment_id)
        odd = odd_beside_others(tallies, tolerated=TOLERATED.of, phi=CLUMP, chance=CHANCE)
        found = deployment_by_name(route.stable_id, route.environment_id, odd.name) if odd is not None else None
        if odd is not None and found is not None and self.leads(READ_TIMEOUT_S):
            _tell(route, found, odd)


@transaction.atomic
def _tell(route: Route, deployment: Deployment, odd: OddReplica) -> None:
    told = events().filter(verb=VERB, subject_type="deployment", subject_id=str(deployment.pk))
    if told.filter(at__gt=timezone.now() - QUIET).exists():
        return
    release, where = route.stable, route.environment.slug
    append_event(
        verb=VERB, subject_type="deployment", subject_id=str(deployment.pk), actor=Actor.system("engine"),
        reason=f"Errors of {route.model.slug} {release.name} in {where} are of one replica of {odd.replicas}, within ten minutes: "
        f"{odd.words}. Replace it: `sluicegate release replace {route.model.slug}/{release.name} {deployment.pk} --set-aside`.",
        facts={
            "model": route.model.slug, "release": release.name, "digest": release.digest, "environment": where,
            "node": deployment.node_id, **odd.facts,
        },
    )  # fmt: skip
