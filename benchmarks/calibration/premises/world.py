"""The traffic of one simulated rollout: what begins in a second, by gateway and arm, and how it will end."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from benchmarks.calibration.premises.scenario import BadClient, Bursts, Fault, Replicas, Scenario, Wander
from benchmarks.calibration.traffic import EDGES_MS, Latency, Spells

Floats = npt.NDArray[np.float64]
CANDIDATE, STABLE = 0, 1


@dataclass(frozen=True)
class Begun:
    """First attempts of one arm that begin within a second: those that will be answered, how many of these over each
    latency edge, those that fail by themselves, and those that would fail wherever they go.
    """

    ok: int = 0
    over: tuple[int, ...] = ()
    own: int = 0
    poison: int = 0


class World:
    """One run's chances. `at` counts seconds since the first step began; the second that ends then is meant."""

    def __init__(self, scenario: Scenario, rng: np.random.Generator, first_frac: float) -> None:
        s = scenario
        self.scenario, self.rng, self.bake_at = s, rng, math.inf
        self.moved_at, self.fleet = 0.0, Fleet(s.replicas, rng) if s.replicas else None
        self.stable_fleet = Fleet(s.stable_replicas, rng) if s.stable_replicas else None
        if self.stable_fleet is not None:
            self.stable_fleet.scaled(1.0)
        seconds = s.warm_s + s.horizon_s + 2
        self.gateway_per_s = s.rate_per_s / first_frac / len(s.base)
        self.servers = 2 * s.an_arm or max(2, round(s.servers / first_frac))
        self._ill = _in_spell(rng, s.spells, self.servers, seconds) if s.spells else None
        self._over = _wandering(rng, s.wander, s.latency, self.servers, seconds) if s.wander and s.latency else None
        self._plain = tuple(
            tuple(one.over(edge) for edge in EDGES_MS) if one else () for one in (s.slower or s.latency, s.latency)
        )
        self._client = _client(rng, s.bad_client, s.horizon_s) if s.bad_client else {}
        self._before = dict(s.before)
        self.slow_times = (
            tuple(
                tuple(one for one in s.slow_times if one.is_shared or one.is_of_stable == (arm == STABLE))
                for arm in (0, 1)
            )
            if s.slow_times
            else ()
        )

    def begun(self, at: int, gateway: int, frac: float) -> tuple[Begun, Begun]:
        """What begins at a gateway that sends `frac` of its requests to the candidate, by arm."""
        extra = self._client_errors(at, frac) if gateway == 0 else (0, 0)
        before = self._before.get(at, 0) if gateway == 0 else 0
        candidate = self._of(CANDIDATE, at, gateway, frac, extra[0]) if frac else Begun()
        return candidate, self._of(STABLE, at, gateway, 1 - frac, extra[1] + before)

    @property
    def onset_at(self) -> float:
        """When the first fault of the candidate begins, as far as is known yet."""
        s = self.scenario
        own = [one for one in (*s.faults, *s.slow_times) if not (one.is_shared or one.is_of_stable or one.is_common)]
        return min((fault.from_s + self._start(fault) for fault in own), default=0.0)

    def has_server(self, at: int) -> bool:
        """Whether the candidate has a server, as the agent reports it."""
        return not any(fault.is_seen and self._share(fault, at) for fault in self.scenario.faults)

    def again(self, begun: Begun, gateway: int) -> int:
        """Of these failures, how many fail on stable as well."""
        by_chance = int(self.rng.binomial(begun.own, self.scenario.base[gateway])) if begun.own else 0
        return begun.poison + by_chance

    def _of(self, arm: int, at: int, gateway: int, frac: float, extra: int) -> Begun:
        s, rng, rate = self.scenario, self.rng, self.gateway_per_s * frac
        failing = s.base[gateway] if arm == STABLE or s.candidate_base is None else s.candidate_base
        if self._ill is not None and s.spells is not None:
            failing = min(1.0, failing + self._mean(self._ill, arm, at, frac) * s.spells.frac)
        own = _clumps(rng, rate * failing, s.clump)
        for fault in s.faults:
            is_here = not fault.is_common and (fault.is_shared or fault.is_of_stable == (arm == STABLE))
            share = self._share(fault, at) if is_here else 0.0
            if share:
                share = min(share, 1 - failing)
                failing += share
                own += _clumps(rng, rate * share, fault.clump)
        own += self._burst(rate, s.bursts) if s.bursts else 0
        fleet = self.fleet if arm == CANDIDATE else self.stable_fleet
        own += fleet.failed(rate, own) if fleet is not None else 0
        common = s.poison + sum(self._share(fault, at) for fault in s.faults if fault.is_common)
        poison = int(rng.poisson(rate * common)) if common else 0
        if s.swapped:
            never = int(rng.poisson(rate * s.swapped))
            own, poison = (own + never, poison) if arm == CANDIDATE else (own, poison + never)
        ok = int(rng.poisson(rate * max(0.0, 1 - failing - common - s.swapped)))
        return Begun(ok, self._slow(arm, at, frac, ok), own, poison + extra)

    def _burst(self, rate: float, bursts: Bursts) -> int:
        events = int(self.rng.poisson(rate * bursts.share / _mean_burst(bursts)))
        sizes = np.floor(np.minimum(bursts.most, self.rng.pareto(bursts.shape, events) + 1))
        return int(sizes.sum())

    def _start(self, fault: Fault) -> float:
        return self.bake_at if fault.in_bake else 0.0

    def _share(self, fault: Fault, at: int) -> float:
        return fault.at(at - self._start(fault) - fault.from_s)

    def _slow(self, arm: int, at: int, frac: float, ok: int) -> tuple[int, ...]:
        """How many answers are over each edge; the edges grow."""
        over = self._plain[arm]
        if not over:
            return ()
        if self._over is not None:
            over = tuple(self._mean(one, arm, at, frac) for one in self._over)
        cold = self.scenario.cold
        share = cold.at(at - self.moved_at) if cold is not None and arm == CANDIDATE else 0.0
        if self.slow_times:
            share = 1 - (1 - share) * (1 - sum(self._share(one, at) for one in self.slow_times[arm]))
        if share:
            over = tuple(one + (1 - one) * share for one in over)
        found, left, within = [], ok, 1.0
        for one in over:
            left = int(self.rng.binomial(left, min(1.0, one / within))) if left else 0
            within = max(one, 1e-12)
            found.append(left)
        return tuple(found)

    def _mean(self, sums: Floats, arm: int, at: int, frac: float) -> float:
        """Over the arm's servers, of an array (server, second) summed up over servers: the candidate's are the first ones."""
        moment, count = max(0, at + self.scenario.warm_s), min(self.servers, max(1, round(self.servers * frac)))
        count = self.scenario.an_arm or count
        if arm == CANDIDATE:
            return float(sums[count - 1, moment]) / count
        before = float(sums[self.servers - count - 1, moment]) if count < self.servers else 0.0
        return (float(sums[-1, moment]) - before) / count

    def _client_errors(self, at: int, frac: float) -> tuple[int, int]:
        errors, chosen = self._client.get(at, (0, 0.0))
        if not errors:
            return 0, 0
        if self.scenario.bad_client is not None and self.scenario.bad_client.is_sticky:
            return (errors, 0) if chosen < frac else (0, errors)
        mine = int(self.rng.binomial(errors, frac))
        return mine, errors - mine


class Fleet:
    """What one arm's replicas are asked and fail. Counts by replica begin anew when one comes or goes."""

    def __init__(self, replicas: Replicas, rng: np.random.Generator) -> None:
        self.replicas, self.rng = replicas, rng
        self.names: list[str] = []
        self.tallies: dict[str, list[int]] = {}

    def scaled(self, frac: float) -> None:
        """For a weight of `frac`."""
        wanted = max(1, round(frac * self.replicas.count))
        self._are(self.names + [f"server {one}" for one in range(len(self.names), wanted)])

    def leave(self, name: str) -> None:
        self._are([one for one in self.names if one != name])

    def come(self, name: str) -> None:
        self._are([*self.names, name])

    def begin(self) -> None:
        """Counts begin anew, as a stage does."""
        self.tallies = {one: [0, 0] for one in self.names}

    def _are(self, names: list[str]) -> None:
        if names != self.names:
            self.names, self.tallies = names, {one: [0, 0] for one in names}

    def failed(self, rate: float, others: int) -> int:
        """What the bad replica fails besides `others`, that are spread over all."""
        each, more = rate / len(self.names), 0
        for one, count in zip(
            self.names, self.rng.multinomial(others, [1 / len(self.names)] * len(self.names)), strict=True
        ):
            is_bad = one == f"server {self.replicas.count - 1}"
            own = int(self.rng.poisson(each * self.replicas.bad)) if is_bad else 0
            self.tallies[one][0] += int(count) + own
            self.tallies[one][1] += int(self.rng.poisson(each * (1 - self.replicas.bad * is_bad))) + own
            more += own
        return more


@cache
def _mean_burst(bursts: Bursts) -> float:
    """Of the sizes, rounded down and cut off."""
    sizes = np.arange(1, bursts.most + 1)
    return float(np.sum(sizes**-bursts.shape))


def _clumps(rng: np.random.Generator, expected: float, size: int) -> int:
    return int(rng.poisson(expected / size)) * size if expected > 0 else 0


def _in_spell(rng: np.random.Generator, spells: Spells, servers: int, seconds: int) -> Floats:
    """1 for each server's seconds in a spell, as sums over the servers up to this one."""
    ill = np.zeros((servers, seconds))
    now = rng.random(servers) < spells.mean_s / spells.every_s
    for moment in range(seconds):
        chance = np.where(now, 1 - 1 / spells.mean_s, 1 / spells.every_s)
        now = rng.random(servers) < chance
        ill[:, moment] = now
    return np.cumsum(ill, axis=0)


def _wandering(rng: np.random.Generator, wander: Wander, usual: Latency, servers: int, seconds: int) -> list[Floats]:
    """For each edge, each server's share of slow answers, as sums over the servers up to this one.

    The mean share over time is more than the usual one, because the tail gains more from slow times than it loses by fast ones.
    """
    keep = math.exp(-1 / wander.tau_s)
    log = np.zeros((servers, seconds))
    now = rng.normal(0, wander.sd, servers)
    for moment in range(seconds):
        now = keep * now + rng.normal(0, wander.sd * math.sqrt(1 - keep * keep), servers)
        log[:, moment] = now
    grid = np.linspace(log.min(), log.max(), 400)
    found = []
    for edge in EDGES_MS:
        over = [replace(usual, median_ms=usual.median_ms * math.exp(one)).over(edge) for one in grid]
        found.append(np.cumsum(np.interp(log, grid, over), axis=0))
    return found


def _client(rng: np.random.Generator, client: BadClient, seconds: int) -> dict[int, tuple[int, float]]:
    """By second: the errors of the bursts, and the chance that chooses a sticky burst's arm."""
    found: dict[int, tuple[int, float]] = {}
    at = 1 + int(rng.exponential(client.every_s))
    while at < seconds:
        errors, chosen = int(rng.integers(client.errors[0], client.errors[1] + 1)), float(rng.random())
        for i, one in enumerate(rng.multinomial(errors, [1 / client.lasts_s] * client.lasts_s)):
            found[at + i] = (int(one), chosen)
        at += client.lasts_s + int(rng.exponential(client.every_s))
    return found
