"""What one tick of evidence costs: `python -m benchmarks.evidence_cost`.

Two guards (errors; slow at three thresholds), one gateway, 10 requests/s on the candidate and 90 on stable, an hour of ticks.
Printed: processor time of update_state() and judged_all() for one tick, and the size of the state as JSON.
"""

from __future__ import annotations

import json
import time

import numpy as np

from rollouts.core.counter_deltas import Counts, Reading
from rollouts.core.engine_state import EngineState, update_state
from rollouts.core.policy_schema import parse_policy
from rollouts.core.snapshot import judged_all

SHARES = {"errors": 0.005, "slow_100ms": 0.2, "slow_250ms": 0.02, "slow_500ms": 0.005}
GUARDS = [{"indicator": "errors"}, {"indicator": "slow", "thresholds_ms": [100, 250, 500]}]
OBJECTIVES = {"slow": {"threshold_ms": 250, "max_frac": 0.05}}
TICKS, CHUNK = 3600, 100


def readings(seed: int = 1) -> list[Reading]:
    """The gateway's cumulative counters, second by second."""
    rng, total, out = np.random.default_rng(seed), [0, 0], []
    bad = [dict.fromkeys(SHARES, 0), dict.fromkeys(SHARES, 0)]
    for second in range(TICKS + 1):
        arms = []
        for i, rate in enumerate((10, 90)):
            n = int(rng.poisson(rate))
            total[i] += n
            bad[i] = {name: bad[i][name] + int(rng.binomial(n, share)) for name, share in SHARES.items()}
            arms.append(Counts(total[i], total[i], bad[i]))
        out.append(Reading("one", 1_800_000_000.0 + second, *arms, sum(total), 0))
    return out


def main() -> None:
    """Prints the figures."""
    policy = parse_policy({"guards": GUARDS}, OBJECTIVES)
    first, *later = readings()
    state, took_us = EngineState(readings={"gateway": first}), []
    for start in range(0, TICKS, CHUNK):
        began = time.process_time()
        for tick, reading in enumerate(later[start : start + CHUNK], start + 1):
            state = update_state(state, tick=tick, readings={"gateway": reading}, policy=policy, has_stable=True)
            judged_all(state, policy, has_stable=True)
        took_us.append((time.process_time() - began) / CHUNK * 1e6)
    size = len(json.dumps(state.to_json(), separators=(",", ":")))
    print(f"one tick: {np.median(took_us):.0f} µs, at best {min(took_us):.0f} µs; state after an hour: {size} bytes")


if __name__ == "__main__":
    main()
