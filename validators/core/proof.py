"""When a load has proven its objective or refuted it, and how many requests that takes at least.

The evidence may be looked at after every window of a run, and the first proof counts: the chance that it is ever wrong stays
at 1 - confidence. What that rests on: slow requests come independently of each other, or in clumps no larger than
`least_dispersion`, or than the run itself has shown so far. Clumps that are seldomer than the run is long break it, and
no run of that length can tell: `python -m benchmarks.load_gate` measures by how much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from validators.core.slo import SloJudgement, dispersion, judge_slo, least_requests
from validators.core.verdict import Verdict

WINDOW_S = 1.0
#: No look before: a run that is stopped at once knows nothing of clumps, and one stall at its start would be all it saw.
LEAST_WINDOWS = 8
#: A run that nobody limits may take so many times its least, but from and to so many seconds.
_PATIENCE, _LEAST_DEADLINE_S, _MOST_DEADLINE_S = 4, 60.0, 600.0
_PROVEN = (Verdict.PASSED, Verdict.FAILED)


@dataclass(frozen=True)
class Sizing:
    """What a pass takes: `requests` at least, none of them slow, in `seconds`; the run ends after `deadline_s` anyway."""

    requests: int
    seconds: float
    deadline_s: float

    @property
    def sentence(self) -> str:
        needs = f"needs {self.requests} requests to pass, about {math.ceil(self.seconds)} s"
        if self.seconds > self.deadline_s:
            return f"{needs}, and ends after {self.deadline_s:g} s: it can fail, and cannot pass"
        return f"{needs}; ends after {self.deadline_s:g} s at the latest"


@dataclass(frozen=True)
class Proof:
    """The evidence after `windows` windows."""

    windows: int
    found: SloJudgement


def sizing(policy: Mapping[str, Any]) -> Sizing:
    """Of a load section with an objective; its `max_duration_s` may be null, which makes the deadline follow the need."""
    needed = _least_requests(
        float(policy["slo_quantile"]), float(policy["confidence"]), float(policy["least_dispersion"])
    )
    seconds = max(LEAST_WINDOWS * WINDOW_S, needed / float(policy["rate_per_s"]))
    given = policy["duration_s"] if policy["duration_s"] is not None else policy["max_duration_s"]
    deadline_s = min(_MOST_DEADLINE_S, max(_LEAST_DEADLINE_S, _PATIENCE * seconds)) if given is None else float(given)
    return Sizing(needed, seconds, round(deadline_s, 3))


def proof_at(over: Sequence[int], sent: Sequence[int], policy: Mapping[str, Any], *, tests: int = 1) -> Proof:
    """The evidence of all these windows: requests `over` the objective, of those that were `sent`.

    `tests`: how many are made of one run, any of which can fail it; they share the chance of failing needlessly.
    """
    phi = max(float(policy["least_dispersion"]), dispersion(over))
    quantile, confidence = float(policy["slo_quantile"]), float(policy["confidence"])
    found = judge_slo(sum(over), sum(sent), quantile=quantile, confidence=confidence, phi=phi, tests=tests)
    return Proof(len(over), found)


def first_proof(
    over: Sequence[int],
    sent: Sequence[int],
    policy: Mapping[str, Any],
    *,
    tests: int = 1,
    of: Sequence[Verdict] = _PROVEN,
) -> Proof:
    """The first look at which one `of` these verdicts was found, else the last.

    A run of a fixed `duration_s` is looked at once, at its end.
    """
    first = len(over) if policy["duration_s"] is not None else min(len(over), LEAST_WINDOWS)
    for windows in range(first, len(over)):
        proof = proof_at(over[:windows], sent[:windows], policy, tests=tests)
        if proof.found.verdict in of:
            return proof
    return proof_at(over, sent, policy, tests=tests)


@lru_cache(maxsize=64)
def _least_requests(quantile: float, confidence: float, phi: float) -> int:
    return least_requests(quantile=quantile, confidence=confidence, phi=phi)
