"""Simulated traffic of both arms, one second at a time, for many runs at once.

What is simulated, and what is not, stands in docs/calibration.md in plain words. Attempts arrive independently of each
other; bad ones come alone, in clumps that end within one second, or in slow or failing spells of a server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rollouts.core.request_mix import SIZES

Floats = npt.NDArray[np.float64]

ERRORS = "errors"
#: Latency edges that a `slow` guard of 250 ms counts at by default, in ms; the last one carries the objective.
EDGES_MS = (50.0, 100.0, 250.0)
SLOW = tuple(f"slow_{edge:g}ms" for edge in EDGES_MS)


@dataclass(frozen=True)
class Clump:
    """How many attempts one bad event takes with it: always `mean`, or geometrically many with that mean."""

    mean: float = 1.0
    is_fixed: bool = True

    def of(self, rng: np.random.Generator, expected: Floats) -> Floats:
        """Bad attempts where `expected` are expected."""
        events = rng.poisson(expected / self.mean)
        if self.is_fixed:
            return events * self.mean
        more = rng.negative_binomial(np.maximum(events, 1), 1 / self.mean)
        return (events + np.where(events > 0, more, 0)).astype(np.float64)


@dataclass(frozen=True)
class Latency:
    """Lognormal, with `tail_frac` of the requests slower by `tail_factor`."""

    median_ms: float = 90.0
    sigma: float = 0.4
    tail_frac: float = 0.0
    tail_factor: float = 5.0

    def over(self, edge_ms: float) -> float:
        """The share of requests that take longer."""

        def above(median_ms: float) -> float:
            return 0.5 * math.erfc(math.log(edge_ms / median_ms) / self.sigma / math.sqrt(2))

        return (1 - self.tail_frac) * above(self.median_ms) + self.tail_frac * above(self.median_ms * self.tail_factor)


@dataclass(frozen=True)
class Spells:
    """Each server now and then fails `frac` of its attempts for `mean_s` on average, `every_s` on average."""

    frac: float
    mean_s: float
    every_s: float


@dataclass(frozen=True)
class Scenario:
    """What happens to both arms. Shares in [0, 1], times in seconds since the rollout's first step began.

    `bad` is the candidate's failing share from `onset_s` on (None: as stable). `incident` fails that share of both arms for two
    minutes that begin at random within `incident_within_s`. `swings`: in every tenth minute, at random, both arms fail ten
    times as often. `load_swing`: peak over trough of a load that rises and falls every half hour, and failures with it.
    `hard`: the share of hard requests at (stable, candidate); hard ones are larger and fail 41 times as often as easy ones, which
    fail 0.1 %.
    """

    total_per_s: float
    server_per_s: float
    base: float = 0.005
    bad: float | None = None
    onset_s: float = 0.0
    clump: Clump = Clump()
    incident: float = 0.0
    incident_within_s: float = 1680.0
    swings: bool = False
    load_swing: float = 1.0
    hard: tuple[float, float] | None = None
    spells: Spells | None = None
    latency: Latency | None = None
    slower: Latency | None = None  # the candidate's, from onset_s on

    @property
    def is_healthy(self) -> bool:
        return self.bad is None and self.slower is None


INCIDENT_S, SWING_S, LOAD_PERIOD_S = 120.0, 60.0, 1800.0
SWING_FACTOR, SWING_CHANCE = 10.0, 0.1
EASY, HARD = 0.001, 0.041


@dataclass(frozen=True)
class Second:
    """Attempts of one second for every run, and of these the bad ones by the name of their counter."""

    candidate: Floats
    stable: Floats
    bad: Mapping[str, tuple[Floats, Floats]]

    def of(self, runs: npt.NDArray[np.int64]) -> Second:
        """For these runs only."""
        bad = {name: (xc[runs], xb[runs]) for name, (xc, xb) in self.bad.items()}
        return Second(self.candidate[runs], self.stable[runs], bad)

    def counted(self, point: str) -> tuple[Floats, Floats]:
        """Bad attempts of both arms at a guard's point; zeros if the scenario has none: its callers make no mistakes."""
        return self.bad.get(point) or (np.zeros_like(self.candidate), np.zeros_like(self.stable))


class Traffic:
    """The same scenario for `runs` rollouts that differ in chance, in their weights, and in when the incident comes."""

    def __init__(self, scenario: Scenario, runs: int, rng: np.random.Generator) -> None:
        self.scenario, self.runs, self.rng = scenario, runs, rng
        self.incident_at = rng.uniform(0, scenario.incident_within_s, runs)
        self.phase = rng.uniform(0, 2 * math.pi, runs)
        self.swing = np.ones(runs)
        self.in_spell = [np.zeros(runs, dtype=np.int64), np.zeros(runs, dtype=np.int64)]

    def second(self, at_s: float, weight_frac: Floats) -> Second:
        """What both arms count in the second that ends at `at_s`."""
        s = self.scenario
        load = self._load(at_s)
        rates = (s.total_per_s * load * weight_frac, s.total_per_s * load * (1 - weight_frac))
        shared = self._shared(at_s, load)
        is_on = at_s > s.onset_s
        shares = (s.bad if s.bad is not None and is_on else s.base, s.base)
        latencies = (s.slower if s.slower is not None and is_on else s.latency, s.latency)
        arms = [self._arm(i, rates[i], shares[i], shared, at_s, latencies[i]) for i in range(2)]
        names = arms[0][1]
        return Second(arms[0][0], arms[1][0], {name: (arms[0][1][name], arms[1][1][name]) for name in names})

    def _load(self, at_s: float) -> Floats:
        swing = self.scenario.load_swing
        if swing == 1.0:
            return np.ones(self.runs)
        amplitude = (swing - 1) / (swing + 1)
        return 1 + amplitude * np.sin(2 * math.pi * at_s / LOAD_PERIOD_S + self.phase)

    def _shared(self, at_s: float, load: Floats) -> Floats:
        """By how much failures are multiplied for both arms alike."""
        if self.scenario.swings and (at_s - 1) % SWING_S == 0:
            self.swing = np.where(self.rng.random(self.runs) < SWING_CHANCE, SWING_FACTOR, 1.0)
        return self.swing * load

    def _arm(
        self, arm: int, rate: Floats, share: float, shared: Floats, at_s: float, latency: Latency | None
    ) -> tuple[Floats, dict[str, Floats]]:
        """All attempts of one arm, and the bad ones by counter."""
        s = self.scenario
        if s.hard is not None:
            return self._mixed(rate, s.hard[1 - arm])
        failing = np.minimum(1.0, share * shared)
        if s.incident:
            is_on = (at_s > self.incident_at) & (at_s <= self.incident_at + INCIDENT_S)
            failing = np.where(is_on, np.maximum(failing, s.incident), failing)
        if s.spells is not None:
            failing = failing + self._spells(arm, rate, s.spells)
        errors = s.clump.of(self.rng, rate * failing)
        good = self.rng.poisson(rate * (1 - failing)).astype(np.float64)
        if latency is None:
            return errors + good, {ERRORS: errors}
        return self._slow(rate, failing, errors, latency)

    def _mixed(self, rate: Floats, hard: float) -> tuple[Floats, dict[str, Floats]]:
        """Hard requests are larger than easy ones, so that gateways can see the mix."""
        parts = [(rate * (1 - hard), EASY), (rate * hard, HARD)]
        bad = [self.rng.poisson(part * share).astype(np.float64) for part, share in parts]
        good = [self.rng.poisson(part * (1 - share)).astype(np.float64) for part, share in parts]
        attempts = sum(bad) + sum(good)
        return attempts, {ERRORS: sum(bad), SIZES[0]: attempts, SIZES[1]: bad[1] + good[1]}

    def _spells(self, arm: int, rate: Floats, spells: Spells) -> Floats:
        """The failing share that servers in a spell add to their arm's."""
        servers = np.maximum(1.0, rate / self.scenario.server_per_s)
        ill = self.in_spell[arm]
        ill = ill - self.rng.binomial(ill, 1 / spells.mean_s) + self.rng.poisson(servers / spells.every_s)
        self.in_spell[arm] = ill
        return np.asarray(np.minimum(1.0, ill / servers) * spells.frac)

    def _slow(
        self, rate: Floats, failing: Floats, errors: Floats, latency: Latency
    ) -> tuple[Floats, dict[str, Floats]]:
        """Failures are fast; what is slow comes in the scenario's clumps, each within one latency bucket."""
        shares = _bucket_shares(latency)
        fast = self.rng.poisson(rate * np.maximum(0.0, shares[0] - failing)).astype(np.float64)
        slow = [self.scenario.clump.of(self.rng, rate * share) for share in shares[1:]]
        over = np.cumsum(np.stack(slow)[::-1], axis=0)[::-1]
        counted = dict(zip(SLOW, over, strict=True))
        return errors + fast + over[0], {ERRORS: errors, **counted}


@cache
def _bucket_shares(latency: Latency) -> tuple[float, ...]:
    """The share up to the first edge, between edges, and over the last one."""
    over = [1.0, *(latency.over(edge) for edge in EDGES_MS), 0.0]
    return tuple(above - beyond for above, beyond in pairwise(over))
