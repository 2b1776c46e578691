"""One simulated rollout, walked through the engine's own `evaluate`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.calibration.premises.gateway import Gateway
from benchmarks.calibration.premises.scenario import Scenario
from benchmarks.calibration.premises.world import CANDIDATE, World
from benchmarks.calibration.rivals import BIN_S, Binned, rivals
from rollouts.core.counter_deltas import Counts, Reading
from rollouts.core.decision import Action, Code, Decision
from rollouts.core.engine_state import EngineState, update_state
from rollouts.core.evaluate import TickInput, evaluate
from rollouts.core.lifecycle import RolloutState
from rollouts.core.odd_replica import ReplicaTally
from rollouts.core.policy import FULL_BP, Policy
from rollouts.core.rules.replica_differs import CandidateTallies, EjectReplica
from rollouts.core.rules.stable_replica import ReplaceStable, StableTallies, doubted
from rollouts.core.snapshot import Desired, Identity, Observed

S = RolloutState
#: As in the engine: a candidate without a server is gone when it still has none after so long; one that failed before, at once.
GONE_OVER_S = 0.5
#: So many seconds after a replica was set aside another answers in its place.
REPLACED_S = 60
#: In a hold, replicas of stable are looked at again after so many seconds.
LOOK_AGAIN_S = 10
#: The rules whose alarms are told beside the product's.
OTHERS = ("argo_0", "argo_3", "flagger_5")


@dataclass
class Engine:
    """The engine's row of one rollout. `change` counts the weights that were written."""

    policy: Policy
    server_since: float | None = None
    state: RolloutState = S.PREPARING
    index: int = 0
    weight_bp: int = 0
    look: int = 1
    change: int = 0
    began_at: float = 0.0
    step_started_at: float | None = None
    engine_state: EngineState = field(default_factory=EngineState)
    tick: int = 0

    def start(self, at: float) -> None:
        """The first weight is written."""
        self.state, self.began_at = S.SHIFTING, at
        self._moved(0)

    def prepared(self, readings: Mapping[str, Reading], external: Mapping[str, Reading]) -> None:
        """A tick before the first weight: stable is watched."""
        self.tick += 1
        self.engine_state = update_state(
            self.engine_state,
            tick=self.tick,
            readings=readings,
            policy=self.policy,
            has_stable=True,
            external=external,
        )

    def ticked(
        self,
        at: float,
        readings: Mapping[str, Reading],
        external: Mapping[str, Reading],
        *,
        is_followed: bool,
        has_server: bool,
        replicas: Mapping[str, ReplicaTally] | None = None,
        is_replacing: bool = False,
        stable_replicas: Mapping[str, ReplicaTally] | None = None,
        is_stable_replacing: bool = False,
    ) -> Decision:
        """One tick of a live rollout. `readings` by gateway, `external` by guard that counts elsewhere."""
        is_first = is_followed and self.step_started_at is None
        self.step_started_at = at if is_first else self.step_started_at
        self.tick += 1
        observed = Observed(
            at,
            is_acknowledged=is_followed,
            is_newly_acknowledged=is_first,
            step_started_at=self.step_started_at,
            total_s=at - self.began_at,
            candidate_servers=(int(has_server) and len(replicas or ())) or int(has_server),
            stable_servers=1,
            server_since=self.server_since,
        ).telling(CandidateTallies(replicas or {}, is_replacing), StableTallies(is_replacing=is_stable_replacing))
        given = TickInput(
            self.tick,
            self.policy.at_look(self.look),
            Identity(),
            Desired(self.state, step_index=self.index, weight_bp=self.weight_bp, look=self.look),
            observed,
            self.engine_state,
            readings=readings,
            external=external,
        )
        tick = evaluate(given, gone_over_s=GONE_OVER_S)
        is_looked_at = tick.decision.action is not Action.HOLD or at % LOOK_AGAIN_S == 0
        if stable_replicas and is_looked_at and doubted(tick.snapshot, tick.decision) is not None:
            given = replace(given, observed=observed.telling(StableTallies(stable_replicas, is_stable_replacing)))
            tick = evaluate(given, gone_over_s=GONE_OVER_S)
        self.engine_state, decision = tick.engine_state, tick.decision
        self._applied(decision)
        return decision

    def _applied(self, decision: Decision) -> None:
        if decision.action is Action.ADVANCE:
            self._moved(self.index + 1)
        elif decision.action is Action.START:
            self.state = S.SHIFTING
            self._moved(0)
        elif decision.action is Action.WITHDRAW:
            self.state, self.look, self.index = S.SECOND_LOOK, self.look + 1, -1
            self.weight_bp, self.change, self.step_started_at = 0, self.change + 1, None
        elif decision.action is Action.BAKE:
            self.state = S.BAKING
            self._moved(self.index)
        elif decision.action is Action.PROMOTE:
            self.state = S.PROMOTED
        elif decision.action in {Action.ROLL_BACK, Action.PAUSE}:
            self.state = S.ROLLED_BACK if decision.action is Action.ROLL_BACK else S.PAUSED

    def _moved(self, index: int) -> None:
        self.index, self.change, self.step_started_at = index, self.change + 1, None
        stage = self.policy.bake if self.state is S.BAKING else self.policy.steps[index]
        self.weight_bp = stage.weight_bp


@dataclass(frozen=True)
class Ran:
    """How one run went. Instants are seconds since the first step began; infinite where that never came."""

    state: str
    ended_at: float
    away_at: float  # when traffic was first taken away, by a rollback or for another look; infinite if never
    code: str  # of the last decision
    onset_at: float
    bad: int  # failed or slow attempts of the candidate from the onset until the product's end
    held: tuple[str, ...]  # codes or their causes with which it was held for at least ten ticks
    others: Mapping[str, float]  # by rule, when it rolled back
    stages: tuple[float, ...]  # when each stage began


def ran(scenario: Scenario, rng: np.random.Generator, *, is_watched_on: bool = True) -> Ran:
    """One rollout of the scenario; see `Run.walked`."""
    return Run(scenario, rng).walked(is_watched_on=is_watched_on)


class Run:
    """A rollout, the world that it meets, and what is noted of both."""

    def __init__(self, scenario: Scenario, rng: np.random.Generator) -> None:
        self.scenario, policy = scenario, scenario.parsed()
        self.world = World(scenario, rng, policy.steps[0].weight_bp / FULL_BP)
        self.gateways = {
            f"gateway {i}": Gateway(
                scenario.answers, late_s, rng, is_timed=scenario.latency is not None, is_retrying=scenario.retried
            )
            for i, late_s in enumerate(scenario.late_s)
        }
        self.engine = Engine(policy, server_since=float(scenario.warm_s) if scenario.cold else None)
        self.binned = _Bins()
        self.compared = [0, 0, 0, 0]  # wrong and all answers of the candidate, and of stable
        self.bad = self.most_bp = 0
        self.held: dict[str, int] = {}
        self.stages: list[float] = []
        self.aside, self.aside_at = "", None  # type: ignore
        self.odd, self.odd_at = "", math.inf  # the replica of stable that is replaced, and since when

    def walked(self, *, is_watched_on: bool = True) -> Ran:
        """Ticks from the warm-up to the end, or to the horizon.

        `is_watched_on`: the others watch on after a rollback, at its last weight. If not, `Ran.others` holds only their alarms
        before it.
        """
        self.warm_up()
        engine = self.engine
        engine.start(float(self.scenario.warm_s))
        self._write_weight(0)
        ended_at = away_at = math.inf
        last, bad = Code.NEED_MORE, 0
        for at in range(1, self.scenario.horizon_s + 1):
            is_followed = self._traffic(at)
            self.binned.add(at, self._mesh(), engine.change, is_live=engine.state is not S.PROMOTED)
            if math.isfinite(ended_at):
                continue
            last = self._judged(at, is_followed=is_followed)
            bad = self.bad
            if engine.state in {S.SECOND_LOOK, S.ROLLED_BACK}:
                away_at = min(away_at, float(at))
            if engine.state in {S.PROMOTED, S.ROLLED_BACK, S.PAUSED}:
                ended_at = float(at)
            if engine.state is S.PROMOTED or (math.isfinite(ended_at) and not is_watched_on):
                break
        return self._told(ended_at, away_at, last, bad)

    def warm_up(self) -> None:
        """Stable alone is watched; requests were under way before."""
        warm_s = self.scenario.warm_s
        for at in range(1 - warm_s - max(gateway.longest_s for gateway in self.gateways.values()), 1):
            self._traffic(at)
            if at > -warm_s:
                self.engine.prepared(self._readings(at), self._compared(at))

    def _told(self, ended_at: float, away_at: float, last: Code, bad: int) -> Ran:
        alarms = rivals(self.binned.binned(self.scenario.horizon_s))
        held = tuple(sorted(code for code, ticks in self.held.items() if ticks >= 10))
        others = {name: float(alarms[name][0]) for name in OTHERS}
        state, onset_at = str(self.engine.state), self.world.onset_at
        return Ran(state, ended_at, away_at, str(last), onset_at, bad, held, others, tuple(self.stages))

    def _traffic(self, at: int) -> bool:
        """Lets a second pass; whether every gateway follows the last weight at its end."""
        for i, gateway in enumerate(self.gateways.values()):
            gateway.follows(at - 1)
            for arm, begun in enumerate(self.world.begun(at, i, gateway.weight)):
                again = self.world.again(begun, i) if self.scenario.retried else 0
                gateway.begin(at, arm, begun, again)
                if arm == CANDIDATE and at > self.world.onset_at:
                    self.bad += begun.own + begun.poison + sum(begun.over[-1:])
            gateway.end(at)
        waiting = [gateway for gateway in self.gateways.values() if not gateway.follows(at)]
        return not waiting

    def _judged(self, at: int, *, is_followed: bool) -> Code:
        engine, change = self.engine, self.engine.change
        now = float(at + self.scenario.warm_s)
        has_server = self.world.has_server(at)
        fleet = self._fleet(at)
        decision = engine.ticked(
            now,
            self._readings(at),
            self._compared(at),
            is_followed=is_followed,
            has_server=has_server,
            replicas=fleet,
            is_replacing=self.aside_at is not None and at < self.aside_at + REPLACED_S,
            stable_replicas=self._stable_fleet(at),
            is_stable_replacing=self.odd_at <= at < self.odd_at + REPLACED_S,
        )
        for command in decision.commands:
            if isinstance(command, ReplaceStable):
                self.odd, self.odd_at = command.replica, at
            elif isinstance(command, EjectReplica):
                self.aside, self.aside_at = command.replica, at
        cause = decision.because or str(decision.code)
        self.held[cause] = self.held.get(cause, 0) + 1
        if engine.change != change:
            self._write_weight(at)
        return decision.code

    def _fleet(self, at: int) -> dict[str, ReplicaTally]:
        fleet = self.world.fleet
        if fleet is None:
            return {}
        if self.aside_at is not None and at == self.aside_at + 2:
            fleet.leave(self.aside)
        if self.aside_at is not None and at == self.aside_at + REPLACED_S:
            fleet.come("another")
        return {name: ReplicaTally(*one) for name, one in fleet.tallies.items() if one[1]}

    def _stable_fleet(self, at: int) -> dict[str, ReplicaTally]:
        """What the replicas of stable counted in this stage; nothing if gateways do not count by server."""
        fleet, replicas = self.world.stable_fleet, self.scenario.stable_replicas
        if fleet is None or replicas is None or not replicas.is_counted:
            return {}
        if at == self.odd_at + REPLACED_S:
            fleet.leave(self.odd)
            fleet.come("another")
        return {name: ReplicaTally(*one) for name, one in fleet.tallies.items() if one[1]}

    def _write_weight(self, at: int) -> None:
        """Gateways that are not late follow before the next second begins."""
        self.stages.append(float(at))
        if self.engine.state is S.BAKING:
            self.world.bake_at = float(at)
        scenario, fleet = self.scenario, self.world.fleet
        is_more = self.engine.weight_bp > self.most_bp
        self.most_bp = max(self.most_bp, self.engine.weight_bp)
        if is_more and scenario.cold is not None and scenario.cold.each_weight:
            self.world.moved_at = float(at)
            self.engine.server_since = float(at + scenario.warm_s)
        if self.world.stable_fleet is not None:
            self.world.stable_fleet.begin()
        if fleet is not None:
            fleet.scaled(self.engine.weight_bp / FULL_BP)
        for gateway in self.gateways.values():
            gateway.told(float(at), self.engine.weight_bp / FULL_BP, self.engine.change)

    def _readings(self, at: int) -> dict[str, Reading]:
        now = float(at + self.scenario.warm_s)
        return {name: gateway.reading(now) for name, gateway in self.gateways.items()}

    def _compared(self, at: int) -> dict[str, Reading]:
        """What the prober has counted, a second more each time: it asks both arms by itself, whatever the weight."""
        per_s, rng = self.scenario.compared_per_s, self.world.rng
        if not per_s:
            return {}
        for arm, share in enumerate(self.scenario.wrong):
            found = int(rng.poisson(per_s)) if at > 0 else 0
            self.compared[2 * arm] += int(rng.binomial(found, share))
            self.compared[2 * arm + 1] += found
        arms = [Counts(n, n, {"wrong": wrong}) for wrong, n in (self.compared[:2], self.compared[2:])]
        return {"wrong": Reading("one", float(at + self.scenario.warm_s), *arms)}

    def _mesh(self) -> tuple[int, int, int, int]:
        xc, nc, xb, nb = zip(*[gateway.mesh() for gateway in self.gateways.values()], strict=True)
        return sum(xc), sum(nc), sum(xb), sum(nb)


class _Bins:
    """What a mesh counts, in quarter minutes, for the other rules."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]
        self._stages: list[int] = []
        self._live: list[bool] = []

    def add(self, at: int, total: tuple[int, int, int, int], stage: int, *, is_live: bool) -> None:
        if at % BIN_S == 0:
            self._kept.append(total)
            self._stages.append(stage)
            self._live.append(is_live)

    def binned(self, seconds: int) -> Binned:
        """Until `seconds`, with nothing after the last bin."""
        bins = seconds // BIN_S
        counts = np.zeros((4, 1, bins))
        stage, is_live = np.zeros((1, bins), dtype=np.int64), np.zeros((1, bins), dtype=np.bool_)
        found = np.diff(np.array(self._kept, dtype=np.float64), axis=0)
        counts[:, 0, : len(found)] = found.T
        stage[0, : len(found)], is_live[0, : len(found)] = self._stages, self._live
        return Binned(*counts, stage, is_live)
