"""One cell of the calibration: many rollouts of one policy under one scenario, judged by the product and by the other rules."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.calibration.product import LIVE, PROMOTED, ROLLED_BACK, Product
from benchmarks.calibration.rivals import BIN_S, Binned, rivals
from benchmarks.calibration.traffic import ERRORS, Scenario, Second, Traffic
from rollouts.core.policy import Policy
from rollouts.core.policy_schema import parse_policy
from validators.core.compare import share_of

Floats = npt.NDArray[np.float64]
SEED = 2026
OURS = "sluicegate"


@dataclass(frozen=True)
class Cell:
    """What is simulated in one row of a table. `counter` is the bad-counter that the other rules look at."""

    group: str
    kind: str  # the row's words
    rate_per_s: float  # of the candidate at the first weight
    scenario: Scenario
    policy: dict[str, Any]
    horizon_s: int
    counter: str = ERRORS
    warm_s: int = 60  # for so long stable was watched while the candidate was being prepared
    objectives: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.group}/{self.kind}/{self.rate_per_s:g}"

    def parsed(self) -> Policy:
        return parse_policy(self.policy, self.objectives)


@dataclass(frozen=True)
class Told:
    """A run's traffic as the product saw it, for walking it again: weights and counts by second."""

    before: list[tuple[int, dict[str, int]]]  # stable alone, while the candidate was being prepared
    weights_bp: list[int]
    seconds: list[tuple[int, int, dict[str, tuple[int, int]]]]


@dataclass(frozen=True)
class Story:
    """All that one cell's simulation brought."""

    product: Product
    binned: Binned
    bad_so_far: Floats  # of the candidate since the onset, by (run, quarter minute)
    bad_at_end: Floats  # of the candidate since the onset, when the product ended the run
    told: list[Told]


def simulate(cell: Cell, runs: int, *, tell: int = 0) -> Story:
    """Walks `runs` rollouts of the cell, second by second; keeps the traffic of the first `tell` of them."""
    rng = np.random.default_rng([SEED, zlib.crc32(cell.name.encode())])
    traffic, product = Traffic(cell.scenario, runs, rng), Product(cell.parsed(), runs)
    bins = _Bins(runs)
    told = [Told([], [], []) for _ in range(tell)]
    _prepare(cell, traffic, product, told)
    bad, bad_at_end = np.zeros(runs), np.full(runs, np.inf)
    for at in range(1, cell.horizon_s + 1):
        weight = product.weight_frac
        second = traffic.second(float(at), weight)
        _tell(told, weight, second, product)
        bad += second.bad[cell.counter][0] * (at > cell.scenario.onset_s)
        was_live = product.state == LIVE
        if was_live.any():
            product.absorb(float(cell.warm_s + at), second)
        ended = was_live & (product.state != LIVE)
        bad_at_end[ended] = bad[ended]
        bins.add(at, second, cell.counter, product, bad)
        if cell.scenario.is_healthy and not (product.state == LIVE).any():
            break
    product.ended_s -= cell.warm_s
    return Story(product, bins.binned(), bins.bad(), bad_at_end, told)


def _prepare(cell: Cell, traffic: Traffic, product: Product, told: list[Told]) -> None:
    """All traffic on stable, which is watched already."""
    for at in range(1 - cell.warm_s, 1):
        second = traffic.second(float(at), np.zeros(traffic.runs))
        product.prepare(float(cell.warm_s + at), second)
        for i, story in enumerate(told):
            story.before.append((int(second.stable[i]), {name: int(xb[i]) for name, (_, xb) in second.bad.items()}))
    product.begin()


class _Bins:
    """Collects seconds into quarter minutes."""

    def __init__(self, runs: int) -> None:
        self._open = np.zeros((4, runs))
        self._kept: list[Floats] = []
        self._stages: list[npt.NDArray[np.int64]] = []
        self._live: list[npt.NDArray[np.bool_]] = []
        self._bad: list[Floats] = []

    def add(self, at: int, second: Second, counter: str, product: Product, bad: Floats) -> None:
        xc, xb = second.bad[counter]
        self._open += np.stack([xc, second.candidate, xb, second.stable])
        if at % BIN_S == 0:
            self._kept.append(self._open)
            self._open = np.zeros_like(self._open)
            self._stages.append(product.stage.copy())
            self._live.append(product.state != PROMOTED)
            self._bad.append(bad.copy())

    def binned(self) -> Binned:
        counts = np.stack(self._kept, axis=-1)
        return Binned(*counts, np.stack(self._stages, axis=-1), np.stack(self._live, axis=-1))

    def bad(self) -> Floats:
        return np.stack(self._bad, axis=-1)


def _tell(told: list[Told], weight: Floats, second: Second, product: Product) -> None:
    for i, story in enumerate(told):
        if product.state[i] == LIVE:
            story.weights_bp.append(round(weight[i] * 10_000))
            bad = {name: (int(x[i]), int(y[i])) for name, (x, y) in second.bad.items()}
            story.seconds.append((int(second.candidate[i]), int(second.stable[i]), bad))


# --- what is reported -------------------------------------------------------------------------------------------------


def measured(cell: Cell, runs: int) -> dict[str, Any]:
    """The cell's numbers, as they stand in docs/calibration.json."""
    story = simulate(cell, runs)
    product = story.product
    ours = np.where(product.state == ROLLED_BACK, product.ended_s, np.inf)
    codes, counts = np.unique(product.code[product.state == ROLLED_BACK].astype(str), return_counts=True)
    rules = {OURS: _rule(cell, ours, story.bad_at_end)}
    for name, alarms in rivals(story.binned).items():
        rules[name] = _rule(cell, alarms, _bad_at(story.bad_so_far, alarms))
    return {
        "group": cell.group,
        "kind": cell.kind,
        "rate_per_s": cell.rate_per_s,
        "runs": runs,
        "horizon_s": cell.horizon_s,
        "rules": rules,
        "reasons": dict(zip(codes.tolist(), counts.tolist(), strict=True)),
        "frozen_both_arms_bad": share_json(int(product.was_frozen.sum()), runs),
        "promoted": share_json(int((product.state == PROMOTED).sum()), runs),
        "promoted_after_s": _quantiles(product.ended_s[product.state == PROMOTED]),
    }


def _bad_at(bad_so_far: Floats, alarms: Floats) -> Floats:
    """The candidate's bad requests up to the alarm; infinite where there is none."""
    last = bad_so_far.shape[1] - 1
    index = np.where(np.isfinite(alarms), alarms / BIN_S - 1, 0).astype(int)
    found = np.take_along_axis(bad_so_far, np.minimum(index, last)[:, np.newaxis], axis=1)[:, 0]
    return np.where(np.isfinite(alarms), found, np.inf)


def _rule(cell: Cell, alarms: Floats, bad: Floats) -> dict[str, Any]:
    """A rule's alarms. What fires before the fault begins is a false alarm, and no detection."""
    onset, within = cell.scenario.onset_s, alarms <= cell.horizon_s
    if cell.scenario.is_healthy:
        return {"false": share_json(int(within.sum()), len(alarms))}
    early = within & (alarms <= onset)
    found = within & ~early
    watched = ~early
    delays = np.where(found, alarms - onset, np.inf)[watched]
    return {
        "false": share_json(int(early.sum()), len(alarms)) if onset else None,
        "missed": share_json(int((watched & ~found).sum()), int(watched.sum())),
        "delay_s": _quantiles(delays),
        "bad_requests": _quantiles(np.where(found, bad, np.inf)[watched]),
    }


def share_json(count: int, n: int) -> dict[str, Any]:
    """`count` of `n` with its 95 % interval (Clopper and Pearson)."""
    if not n:
        return {"count": 0, "n": 0, "low": 0.0, "high": 1.0}
    share = share_of(count, n)
    return {"count": count, "n": n, "low": round(share.low, 6), "high": round(share.high, 6)}


def _quantiles(values: Floats) -> list[float | None]:
    """Median and 90 %; None where that one is never."""
    if not len(values):
        return [None, None]
    found = [float(np.quantile(values, q, method="inverted_cdf")) for q in (0.5, 0.9)]
    return [round(value, 1) if np.isfinite(value) else None for value in found]
