"""The A/A test: the statistic tried on a stable release against itself, with the very functions that judge a rollout.

The unit is a whole second, since failures clump within one. Of two seconds in a row a coin says which is arm A, the other is
arm B; the pair is one window. Both arms are the same release, so A is no worse than B, and a test at alpha must not reject
more often than that. It runs in episodes; whether rejections are more than alpha allows is itself judged by an e-process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from typing import Any

from rollouts.core.carry import Carry, absorb
from rollouts.core.counting import ERRORS, Arms, Counts, Reading
from rollouts.core.evidence import Side, Tolerance, fixed_sums, mixed
from rollouts.core.plan import Policy
from rollouts.core.policy import parse_policy
from rollouts.core.snapshot import judge
from rollouts.core.watch import Watch

EPISODE_S = 600.0
#: Of one episode.
ALPHA = 0.05
#: The chance of ever alarming although every episode keeps to ALPHA.
ALPHA_ALARM = 0.001
#: Two readings further apart than this are no seconds in a row.
LONGEST_S = 3.0


@cache
def _policy() -> Policy:
    """No tolerance at all: the two arms are the same release."""
    policy = parse_policy({"guards": [{"indicator": "errors"}]})
    none = Tolerance(1.0, 0.0)
    return replace(policy, guards=(replace(policy.guards[0], roll_back_over=none),))


@dataclass(frozen=True)
class SelfTest:
    """`half` is the first second of a pair that waits for its second, with its instant. `seed` tells one model's coin from another's."""

    seed: str = ""
    episodes: int = 0
    rejections: int = 0
    began_at: float | None = None
    has_rejected: bool = False
    half: tuple[int, int, float] | None = None  # attempts, errors, when
    pairs: int = 0
    arms: Arms = field(default_factory=Arms)  # summed over the pairs
    carry: Carry = field(default_factory=Carry)
    error_frac: float | None = None  # of stable, over some minutes

    def after(self, tick: int, at: float, counts: Counts) -> SelfTest:
        """With what stable counted in one second that ended at `at` (seconds since the epoch)."""
        this = (counts.attempts, counts.bad.get(ERRORS, 0), at)
        if self.half is None or at - self.half[2] > LONGEST_S or at <= self.half[2]:
            return replace(self, half=this)
        one, other = (self.half, this) if _coin(self.seed, tick) else (this, self.half)
        return replace(self, half=None)._paired(at, Arms(_counts(one), _counts(other)))

    def _paired(self, at: float, pair: Arms) -> SelfTest:
        arms, pairs = self.arms + pair, self.pairs + 1
        carry = self.carry
        if not carry.readings:  # the first reading is what others are compared with
            carry = replace(carry, readings={"coin": Reading("one", at - 2, self.arms.candidate, self.arms.stable)})
        reading = Reading("one", at, arms.candidate, arms.stable)
        carry = absorb(carry, tick=pairs, readings={"coin": reading}, policy=_policy(), has_stable=True)
        watch = carry.watches.get(ERRORS, Watch())
        judged = judge(_policy().guards[0], watch, has_stable=True, bar_fine=0.0)
        began_at = at if self.began_at is None else self.began_at
        grown = replace(
            self, arms=arms, pairs=pairs, carry=carry, began_at=began_at, error_frac=self._share(pair),
            has_rejected=self.has_rejected or judged.log_e_worse >= -math.log(ALPHA),
        )  # fmt: skip
        return grown._ended(at) if at - began_at >= EPISODE_S else grown

    def _ended(self, at: float) -> SelfTest:
        """The next episode begins with fresh evidence; how failures scatter is remembered."""
        episodes = self.episodes + 1
        return replace(
            self, episodes=episodes, rejections=self.rejections + self.has_rejected, has_rejected=False, began_at=at,
            carry=self.carry.entering(f"episode {episodes}", at, _policy()),
        )  # fmt: skip

    def _share(self, pair: Arms) -> float | None:
        attempts = pair.candidate.attempts + pair.stable.attempts
        if not attempts:
            return self.error_frac
        bad = pair.candidate.bad.get(ERRORS, 0) + pair.stable.bad.get(ERRORS, 0)
        was = bad / attempts if self.error_frac is None else self.error_frac
        return was + (bad / attempts - was) / 150  # some five minutes of pairs

    @property
    def alarm(self) -> bool:
        """Whether rejections are proven to be more than alpha allows."""
        return mixed(fixed_sums(self.rejections, self.episodes, ALPHA, Side.WORSE)) >= -math.log(ALPHA_ALARM)

    def to_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed, "episodes": self.episodes, "rejections": self.rejections, "began_at": self.began_at,
            "has_rejected": self.has_rejected, "pairs": self.pairs, "arms": self.arms.to_json(), "carry": self.carry.to_json(),
            "error_frac": None if self.error_frac is None else round(self.error_frac, 6),
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SelfTest:
        """A pair that was half seen is let go."""
        if "arms" not in value:
            return cls(seed=value.get("seed", ""))
        plain = ("seed", "episodes", "rejections", "began_at", "has_rejected", "pairs", "error_frac")
        return cls(
            **{name: value[name] for name in plain},
            arms=Arms.from_json(value["arms"]),
            carry=Carry.from_json(value["carry"]),
        )


def _counts(half: tuple[int, int, float]) -> Counts:
    return Counts(half[0], half[0], {ERRORS: half[1]})


def _coin(seed: str, tick: int) -> bool:
    return blake2b(f"{seed}:{tick}".encode(), digest_size=1).digest()[0] % 2 == 0
