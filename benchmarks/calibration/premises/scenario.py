"""What one scenario is made of: the traffic, what goes wrong with it, and when."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from benchmarks.calibration.traffic import Latency, Spells
from rollouts.core.policy import Policy
from rollouts.core.policy_schema import parse_policy


@dataclass(frozen=True)
class Answers:
    """How long attempts take, in seconds: answered ones `ok_s` (the median of a lognormal where `sigma` > 0, else each of
    them), failed ones `failed_s`. The candidate's answers take `candidate_times` as long.
    """

    ok_s: float = 0.0
    sigma: float = 0.0
    candidate_times: float = 1.0
    failed_s: float = 0.0


@dataclass(frozen=True)
class Fault:
    """What the candidate fails beyond `base`: `share` of its attempts, in [0, 1], `from_s` seconds after the first step began, or
    after the bake did.

    `clump`: so many of them fail within one second. `every_s`: only the first `on_s` seconds of each such period.
    `grows`: the share begins at nothing and grows by so much a minute, up to `share`. `is_seen`: the agent reports no
    server meanwhile. `is_shared`: both arms fail so, which makes it an incident and no fault. `is_of_stable`: stable alone
    fails so. `for_s`: its length in seconds. `is_common`: the requests fail on whichever release they meet.
    """

    share: float
    from_s: float = 0.0
    in_bake: bool = False
    clump: int = 1
    every_s: float = 0.0
    on_s: float = 0.0
    grows: float = 0.0
    is_seen: bool = False
    is_shared: bool = False
    is_of_stable: bool = False
    is_common: bool = False
    for_s: float = math.inf

    def at(self, since_s: float) -> float:
        """The failing share, so many seconds after its onset; negative ones are before it."""
        if not 0 < since_s <= self.for_s or (self.every_s and (since_s - 1) % self.every_s >= self.on_s):
            return 0.0
        return min(self.share, self.grows * since_s / 60) if self.grows else self.share


@dataclass(frozen=True)
class BadClient:
    """Now and then, every `every_s` on average, one client sends `errors` requests within `lasts_s` that all fail.

    `is_sticky`: all of one burst go to the same arm, which its share of the traffic chooses; else each is split by itself.
    """

    every_s: float
    lasts_s: int = 5
    errors: tuple[int, int] = (30, 200)
    is_sticky: bool = False


@dataclass(frozen=True)
class Wander:
    """Each server's log latency wanders: AR(1) with this standard deviation and correlation time."""

    sd: float
    tau_s: float


@dataclass(frozen=True)
class Cold:
    """The candidate's server is new when the first step begins: `slow` of its answers are slow, in [0, 1], for `for_s` seconds.

    `each_weight`: a weight above all before it brings new servers; those of a second look are warm already. `fades`: the share
    falls to nothing in that time, as a cache fills.
    """

    slow: float
    for_s: float
    each_weight: bool = False
    fades: bool = False

    def at(self, age_s: float) -> float:
        """The share that is slow beyond the usual, when the server is so old."""
        if not 0 < age_s <= self.for_s:
            return 0.0
        return self.slow * (1 - age_s / self.for_s) if self.fades else self.slow


@dataclass(frozen=True)
class Bursts:
    """A share of the attempts fails in bursts of one second whose sizes have a heavy tail: Pareto, at most `most`."""

    share: float
    shape: float = 1.2
    most: int = 500


@dataclass(frozen=True)
class Replicas:
    """The candidate has `count` replicas at the last weight. The last to come fails `bad` more than the others.

    `is_counted`: gateways count by server. For stable's replicas this turns the rule on that looks for a bad one.
    """

    count: int
    bad: float
    is_counted: bool = True


@dataclass(frozen=True)
class Scenario:
    """One row of a table. `rate_per_s`: requests that the candidate gets at the first weight.

    `base`: the failing share of each gateway's region, whose traffic is equal. `candidate_base`: the candidate's where it is
    not stable's. `poison`: the share of requests that fail on whichever release they meet. `swapped`: the share that only stable
    fails, whenever it is asked, and as many others only the candidate. `retried`: a failed attempt is tried again on stable
    once. `late_s`: how long each gateway takes to follow a weight. `before`: failures of stable alone, as
    (second, how many), seconds before the first step being negative. `servers`: of the candidate at the first weight; with
    more traffic it has more. `an_arm`: instead, servers of each arm, at any weight. `is_harmless`: to take the candidate
    back would be wrong, whatever its faults. `runs`: of 200 that a full run asks for, so many are walked.
    """

    group: str
    kind: str
    rate_per_s: float
    policy: dict[str, Any] = field(default_factory=lambda: {"preset": "standard"})
    objectives: dict[str, Any] = field(default_factory=dict)
    horizon_s: int = 1200
    runs: int = 200
    warm_s: int = 60
    base: tuple[float, ...] = (0.005,)
    candidate_base: float | None = None
    clump: int = 1
    poison: float = 0.0
    swapped: float = 0.0
    retried: bool = False
    answers: Answers = Answers()
    late_s: tuple[float, ...] = (0.0,)
    faults: tuple[Fault, ...] = ()
    before: tuple[tuple[int, int], ...] = ()
    bad_client: BadClient | None = None
    servers: int = 1
    spells: Spells | None = None
    latency: Latency | None = None
    slower: Latency | None = None  # the candidate's, from the first second on
    wander: Wander | None = None
    cold: Cold | None = None
    an_arm: int = 0
    slow_times: tuple[Fault, ...] = ()  # as `faults`, of answers that are slow
    bursts: Bursts | None = None
    replicas: Replicas | None = None
    stable_replicas: Replicas | None = None
    is_harmless: bool = False
    compared_per_s: float = 0.0  # answers that the prober compares, of each arm
    wrong: tuple[float, float] = (0.0, 0.0)  # the shares of these that are wrong: the candidate's, stable's

    @property
    def name(self) -> str:
        return f"{self.group}/{self.kind}/{self.rate_per_s:g}"

    @property
    def is_healthy(self) -> bool:
        """Whether to take the candidate back would be wrong."""
        if self.is_harmless:
            return True
        if any(not one.is_shared and not one.is_of_stable for one in self.slow_times):
            return False
        return (
            self.slower is None
            and self.wrong[0] <= self.wrong[1]
            and all(one.is_shared or one.is_of_stable or one.is_common for one in self.faults)
        )

    def parsed(self) -> Policy:
        """The policy as the engine follows it."""
        asked = {
            "second_look": {"looks": 1},
            **self.policy,
        }  # the first crossing ends it, unless the policy states more looks
        return parse_policy(asked, self.objectives).facing(has_stable=True)
