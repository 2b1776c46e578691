"""The engine's cache of active rollouts, and the state of the world that a turn needs, read in a handful of queries.

What only the leader writes is kept in memory from tick to tick, and trusted as long as the row's tick and version are those
that it belongs to. What others write is read every turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import connection

from registry.queries.declared import declared_replicas, learn_declared
from rollouts.actions.tick_records import count_blocks
from rollouts.core.counter_deltas import ERRORS, Reading
from rollouts.core.engine_state import EngineState
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import Edge, Policy, Source
from rollouts.core.rules.all_failing import AllFailing, is_silent
from rollouts.core.rules.servers_gone import CandidateServers
from rollouts.core.tick import Outcome, Tick
from rollouts.core.tick_history import OpenSegment
from rollouts.engine.gateway_counters import slow_edges
from rollouts.models import Rollout
from rollouts.queries import active_rollouts, active_rows
from rollouts.queries.approvals import ahead_of, approvals_of
from rollouts.queries.prober_tallies import wrong_readings
from serving.models import Gateway, Route
from serving.targets.queries import environments_by_id, gateways_in
from serving.traffic.queries.endpoints import Place, ReleaseStanding, standing_of
from serving.traffic.queries.routes import Ack, acknowledgements, routes_between

S = RolloutState


@dataclass(frozen=True)
class SurgeAsk:
    """Number of requested servers of the candidate. `why`: a sentence, why they are missing; empty if unknown."""

    needed: int
    at: float
    why: str = ""


@dataclass
class RolloutEntry:
    """One rollout between two ticks."""

    rollout: Rollout
    policy: Policy  # already `facing` the stable release, if there is one
    engine_state: EngineState  # after its last tick
    history: OpenSegment  # likewise
    blocks: int = 0  # stored, by the last count and those stored since
    report_problem: str | None = None  # why the pinned report does not admit the candidate; None: not looked at yet
    counts_in_prometheus: bool = False
    places: tuple[Place, Place | None] = ((0, ""), None)  # of candidate and stable
    displaced: Place | None = None  # of the stable release whose place the candidate took, while it has it
    stable_start_s: float = 0.0  # how long a server of stable takes to start, as declared
    slow_edges: tuple[Edge, ...] = ()
    ahead: int = (
        0  # quiet ticks since the row was last written; should the engine die, the next reading has their counts
    )
    unwritten: tuple[Tick, Outcome] | None = None  # the last of them
    proven: tuple[float | None, float | None] | None = None  # requests/s of a server, by arm; None: not looked at yet
    is_set_aside: bool = False  # the replica that the rollout was held for gets no more traffic
    stable_asked_at: float = 0.0  # when another in the place of stable's odd replica was last asked for
    surge: SurgeAsk | None = None  # the last time that servers of the candidate were asked for ahead of a weight

    @property
    def needs_fast_poll(self) -> bool:
        """Whether something other than time may move it on: it waits for servers or gateways, or is suspect."""
        rollout = self.rollout
        is_waiting = rollout.state in {S.PREPARING, S.ROLLING_BACK, S.STUCK} or rollout.step_started_at is None
        state = self.engine_state
        return is_waiting or state.is_promoting or state.of(CandidateServers).gone_since is not None or self.is_suspect

    @property
    def has_failed(self) -> bool:
        """Whether the candidate's last attempts failed, or it has no server."""
        servers = self.engine_state.of(CandidateServers)
        return bool(self.engine_state.of(AllFailing).attempts or servers.has_failed or servers.gone_since is not None)

    @property
    def is_suspect(self) -> bool:
        """Whether the last look at it saw the candidate fail in a way that is worth another look before the next tick.

        More than a lone failure and a tenth of its attempts: one fault may have begun in the middle of that second. Or
        none of its attempts ended, though several were due: hung attempts fail all at once, when their time is up.
        """
        if self.rollout.state not in {S.SHIFTING, S.BAKING}:
            return False
        last = self.engine_state.last.candidate
        bad = last.bad.get(ERRORS, 0)
        is_burning = bad >= 2 and bad * 10 >= last.attempts
        return self.engine_state.of(AllFailing).attempts > 0 or is_burning or self._is_silent

    @property
    def _is_silent(self) -> bool:
        state, began = self.engine_state, self.rollout.step_started_at
        if began is None or state.read_at is None or state.candidate_seen_at is None:
            return False
        quiet_s = state.read_at - state.candidate_seen_at
        return is_silent(state.step.candidate.attempts, state.candidate_seen_at - began.timestamp(), quiet_s)

    @property
    def next_tick(self) -> int:
        return self.rollout.tick + self.ahead + 1

    @property
    def awaits_approval(self) -> bool:
        """Whether the policy asks for approvals before a stage that is yet to come: all traffic at once enters each of them."""
        wanted = self.policy.approvals
        return bool(wanted) and any(wanted.get(stage) for stage in ahead_of(self.rollout, self.policy))

    def mark_written(self, outcome: Outcome) -> None:
        """The tick is in the database."""
        self.engine_state, self.history = outcome.engine_state, outcome.history
        self.ahead, self.unwritten = 0, None
        self.blocks += outcome.block is not None

    def keep_unwritten(self, tick: Tick, outcome: Outcome) -> None:
        """The tick stays in memory."""
        self.engine_state, self.history = outcome.engine_state, outcome.history
        self.ahead, self.unwritten = self.ahead + 1, (tick, outcome)


@dataclass(frozen=True)
class WorldState:
    """All that a turn's ticks look at besides their own rollouts. `now` is the database's time."""

    now: datetime
    fence: int
    gateways: Mapping[int, list[Gateway]]  # by environment
    routes: Mapping[tuple[int, int], Route]  # by environment and model
    acks: Mapping[int, Ack]  # by route
    serving: Mapping[Place, ReleaseStanding]
    tampered: frozenset[UUID]  # releases with a stored manifest that differs from the sealed one
    wrong: Mapping[int, Reading]  # the prober's counts, by rollout
    approvals: Mapping[int, Mapping[str, int]]  # people whose approval counts, by rollout that awaits some, and stage

    def serving_at(self, place: Place | None) -> ReleaseStanding:
        return ReleaseStanding() if place is None else self.serving.get(place, ReleaseStanding())

    def followed(self, rollout: Rollout) -> tuple[int, frozenset[int] | None]:
        """The slot of the rollout's route, and the gateways that follow it; None without a route."""
        route = self.routes.get((rollout.environment_id, rollout.model_id))
        return (route.slot, self.acks[route.pk].taken_by) if route is not None else (0, None)

    @property
    def at(self) -> float:
        return self.now.timestamp()


class EngineCache:
    """The rollouts that the leader ticks."""

    def __init__(self) -> None:
        self.known: dict[int, RolloutEntry] = {}
        self._policies: dict[tuple[str, bool], Policy] = {}

    def forget(self) -> None:
        """Everything is read again: another engine may have led meanwhile."""
        self.known.clear()

    def drop(self, rollout_id: int) -> None:
        """This rollout is read again."""
        self.known.pop(rollout_id, None)

    def read(self) -> list[RolloutEntry]:
        """Every active rollout as it is now, the oldest first. Broken ones stay away, with an entry in `broken`."""
        rows = active_rows()
        self.broken: dict[int, Exception] = {}
        new = [pk for pk, row in rows.items() if not self._is_known(pk, row)]
        for pk in [pk for pk in self.known if pk not in rows]:
            self.drop(pk)
        blocks = count_blocks(new) if new else {}
        for rollout in active_rollouts(new) if new else []:
            try:
                self.known[rollout.pk] = self._learn(rollout, blocks.get(rollout.pk, 0))
            except Exception as error:  # one row that cannot be read must not blind the engine to the others
                self.drop(rollout.pk)
                self.broken[rollout.pk] = error
        self._share_environments()
        used = {self._key(known.rollout) for known in self.known.values()}
        self._policies = {key: policy for key, policy in self._policies.items() if key in used}
        return [self.known[pk] for pk in rows if pk in self.known]

    def _is_known(self, pk: int, row: tuple[str, int, int, int]) -> bool:
        known = self.known.get(pk)
        if known is None:
            return False
        rollout = known.rollout
        has_arms = (rollout.stable_id is not None) is (
            known.places[1] is not None
        )  # the candidate may have taken stable's place
        return has_arms and (rollout.state, rollout.version, rollout.tick, rollout.fence) == row

    def _learn(self, rollout: Rollout, blocks: int) -> RolloutEntry:
        state = rollout.engine_state
        rollout.engine_state = {}  # it is in the entry now, and would only take memory
        history = OpenSegment.from_json(state.get("history", {}))
        policy = self._policy_of(rollout)
        for release in (rollout.candidate, rollout.stable, rollout.displaced):
            if release is not None:
                learn_declared(release)
        asks = any(guard.source is Source.PROMETHEUS for guard in policy.guards)
        where, stable = rollout.environment_id, rollout.stable_id
        return RolloutEntry(
            rollout,
            policy,
            EngineState.from_json(state),
            history,
            blocks,
            counts_in_prometheus=asks,
            places=((where, str(rollout.candidate_id)), (where, str(stable)) if stable else None),
            displaced=(where, str(rollout.displaced_id)) if rollout.displaced_id and not stable else None,
            stable_start_s=declared_replicas([stable])[stable].start_s if stable else 0.0,
            slow_edges=slow_edges(policy),
        )

    def _policy_of(self, rollout: Rollout) -> Policy:
        key = self._key(rollout)
        if key not in self._policies:
            self._policies[key] = rollout.effective_policy
        return self._policies[key]

    @staticmethod
    def _key(rollout: Rollout) -> tuple[str, bool]:
        return rollout.policy_digest, rollout.stable_id is not None

    def _share_environments(self) -> None:
        """One object for each environment, as it is now."""
        found = environments_by_id({known.rollout.environment_id for known in self.known.values()})
        for known in self.known.values():
            known.rollout.environment = found[known.rollout.environment_id]


def gateways_of(known: Iterable[RolloutEntry]) -> dict[int, list[Gateway]]:
    """The gateways of these rollouts' environments, by environment."""
    return gateways_in({one.rollout.environment_id for one in known})


def load_world(
    known: Collection[RolloutEntry], gateways: Mapping[int, list[Gateway]], now: datetime, fence: int
) -> WorldState:
    """Data of a turn over these rollouts. A handful of queries at any number of rollouts."""
    rollouts = [one.rollout for one in known]
    models = {rollout.model_id for rollout in rollouts}
    environments = {rollout.environment_id for rollout in rollouts}
    routes = routes_between(models, environments)
    probed = [one.rollout.pk for one in known if any(guard.source is Source.PROBER for guard in one.policy.guards)]
    serving = standing_of({place[1] for one in known for place in (*one.places, one.displaced) if place is not None})
    return WorldState(
        now=now,
        fence=fence,
        gateways=gateways,
        routes={(route.environment_id, route.model_id): route for route in routes},
        acks=acknowledgements(routes, now) if routes else {},
        serving=serving,
        tampered=_tampered(rollouts),
        wrong=wrong_readings(probed) if probed else {},
        approvals=approvals_of([one.rollout for one in known if one.awaits_approval], now=now),
    )


# PostgreSQL does the hashing: the manifests need not travel, and nothing is taken on trust from an earlier turn.
_TAMPERED = """
SELECT id FROM registry_release
WHERE id = ANY(%s::uuid[]) AND digest IS DISTINCT FROM 'sha256:' || encode(sha256(convert_to(manifest, 'UTF8')), 'hex')
"""


def _tampered(rollouts: Iterable[Rollout]) -> frozenset[UUID]:
    candidates = list({rollout.candidate_id for rollout in rollouts})
    with connection.cursor() as cursor:
        cursor.execute(_TAMPERED, [f"{{{','.join(map(str, candidates))}}}"])
        return frozenset(row[0] for row in cursor.fetchall())
