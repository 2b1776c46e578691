"""What many runs of one scenario brought, as it stands in docs/premises.json."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.calibration.premises.scenario import Scenario
from benchmarks.calibration.premises.walking import OTHERS, Ran, ran
from benchmarks.calibration.simulate import OURS, share_json
from rollouts.core.lifecycle import RolloutState

#: Apart from the vectorised calibration's.
SEED = 7103


def walked(scenario: Scenario, first: int, runs: int) -> list[Ran]:
    """Runs number `first` and on. Each has a seed of its own, so that it is the same however the work is cut."""
    name = zlib.crc32(scenario.name.encode())
    return [ran(scenario, np.random.default_rng([SEED, name, run])) for run in range(first, first + runs)]


def measured(scenario: Scenario, runs: Sequence[Ran]) -> dict[str, Any]:
    """The scenario's numbers."""
    back = {RolloutState.ROLLED_BACK, RolloutState.PAUSED}
    ours = [one.ended_at if one.state in back else math.inf for one in runs]
    rules = {OURS: _rule(scenario, runs, ours)}
    for rule in OTHERS:
        rules[rule] = _rule(scenario, runs, [one.others[rule] for one in runs])
    found = {
        "group": scenario.group,
        "kind": scenario.kind,
        "rate_per_s": scenario.rate_per_s,
        "runs": len(runs),
        "horizon_s": scenario.horizon_s,
        "rules": rules,
        "reasons": dict(Counter(one.code for one in runs if one.state in back).most_common()),
        "promoted": share_json(sum(one.state == RolloutState.PROMOTED for one in runs), len(runs)),
        "still_live": share_json(sum(not math.isfinite(one.ended_at) for one in runs), len(runs)),
        "held_by": dict(Counter(code for one in runs for code in one.held).most_common()),
        "promoted_after_s": quantiles(one.ended_at for one in runs if one.state == RolloutState.PROMOTED),
    }
    if not scenario.is_healthy:
        bad = [one.bad if one.state in back and one.ended_at > one.onset_at else math.inf for one in runs]
        found["bad_requests"] = quantiles(bad)
    return found


def _rule(scenario: Scenario, runs: Sequence[Ran], alarms: Sequence[float]) -> dict[str, Any]:
    """A rule's alarms. What fires before the fault begins is a false alarm, and no detection; nor is it missed."""
    if scenario.is_healthy:
        return {"false": share_json(sum(map(math.isfinite, alarms)), len(runs))}
    pairs = [(one.onset_at, at) for one, at in zip(runs, alarms, strict=True)]
    watched = [at - onset for onset, at in pairs if math.isfinite(onset) and at > onset]
    early = sum(math.isfinite(at) and at <= onset for onset, at in pairs)
    return {
        "false": share_json(early, len(pairs)),
        "missed": share_json(sum(not math.isfinite(delay) for delay in watched), len(watched)),
        "delay_s": quantiles(watched),
    }


def quantiles(values: Iterable[float]) -> list[float | None]:
    """Median and 95 %; None where that one is never, or where there is nothing."""
    found = list(values)
    if not found:
        return [None, None]
    two = [float(np.quantile(found, q, method="inverted_cdf")) for q in (0.5, 0.95)]
    return [round(one, 1) if math.isfinite(one) else None for one in two]
