"""Recorded-series simulations of a diagnosis: twelve causes, healthy windows, causes that no one listed, and pairs of causes.

`python -m benchmarks.diagnosis [--runs 20] [--seed 1]` prints the table of docs/lab/diagnosis.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from insights.core.diagnosis.report import Diagnosis, diagnose
from insights.core.diagnosis.series import Array, Change, Counts, Window
from insights.core.diagnosis.shift import Shape

TENANTS = {"t1": 0.4, "t2": 0.3, "t3": 0.2, "t4": 0.1}
REPLICAS = {"r1": "n1", "r2": "n1", "r3": "n2", "r4": "n2", "r5": "n3", "r6": "n3"}
SIZES = {"small": 0.8, "large": 0.2}
#: Mean ms of a request by stage.
STAGES = {"queue": 4.0, "batch_wait": 3.0, "compute": 20.0, "outside": 5.0}
DISTRACTORS = ("deployment.scaled", "gateway.registered", "rollout.promoted", "model.changed", "node.registered")
BEGIN_S = 1_780_000_000 // 86_400 * 86_400


@dataclass(frozen=True)
class Cause:
    """What changes from the onset on. A key of `bad`, `rate`, `errors`, `refused` or `stages` is a value, or `*` for each.

    `expected`: kind → the subject that must be the first of its kind; the first of all must be one of them.
    """

    name: str
    expected: Mapping[str, str]
    bad: Mapping[str, float] = field(default_factory=dict)  # odds of a slow request, times
    errors: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, float] = field(default_factory=dict)
    rate: Mapping[str, float] = field(default_factory=dict)  # requests, times
    stages: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (place, stage) → ms more
    gauges: Mapping[str, float] = field(default_factory=dict)  # reading, times
    change: tuple[str, str] | None = None


TWELVE = (
    Cause(
        "batching delay raised",
        {"stage": "batch_wait", "everyone": "every value alike"},
        bad={"*": 5},
        stages={("*", "batch_wait"): 15},
    ),
    Cause("longer inputs", {"mix": "size large", "stage": "compute"}, rate={"large": 8}, stages={("*", "compute"): 15}),
    Cause(
        "CPU neighbour",
        {"who": "node n2", "stage": "compute", "resource": "cpu n2"},
        bad={"n2": 8},
        stages={("n2", "compute"): 25},
        gauges={"cpu n2": 2.2},
    ),
    Cause(
        "noisy tenant",
        {"volume": "tenant t3", "stage": "queue"},
        bad={"*": 5},
        rate={"t3": 6},
        stages={("*", "queue"): 20},
    ),
    Cause(
        "slow disk at load",
        {"who": "node n3", "stage": "queue", "resource": "disk wait n3"},
        bad={"n3": 6},
        stages={("n3", "queue"): 20},
        gauges={"disk wait n3": 5},
    ),
    Cause(
        "GPU throttled",
        {"who": "node n1", "stage": "compute", "resource": "gpu clock n1"},
        bad={"n1": 8},
        stages={("n1", "compute"): 20},
        gauges={"gpu clock n1": 0.6},
    ),
    Cause(
        "driver changed",
        {"who": "node n2", "stage": "compute", "change": "node.registered node n2"},
        bad={"n2": 6},
        stages={("n2", "compute"): 12},
        change=("node.registered", "node n2"),
    ),
    Cause(
        "retry storm",
        {"resource": "retries", "stage": "queue"},
        bad={"*": 4},
        rate={"*": 1.8},
        stages={("*", "queue"): 15},
        gauges={"retries": 10},
    ),
    Cause(
        "one slow replica", {"who": "replica r4", "stage": "compute"}, bad={"r4": 10}, stages={("r4", "compute"): 40}
    ),
    Cause(
        "cold cache",
        {"resource": "cache hits", "stage": "compute"},
        bad={"*": 4},
        stages={("*", "compute"): 15},
        gauges={"cache hits": 0.15},
    ),
    Cause(
        "quota lowered",
        {"who": "tenant t2", "change": "model.changed m"},
        refused={"t2": 400},
        change=("model.changed", "m"),
    ),
    Cause(
        "slow network to one server",
        {"who": "replica r6", "stage": "outside"},
        bad={"r6": 10},
        stages={("r6", "outside"): 40},
    ),
)
UNLISTED = (
    Cause("errors of a tenant", {"who": "tenant t1"}, errors={"t1": 40}),
    Cause("errors of a node", {"who": "node n3"}, errors={"n3": 40}),
    Cause("errors of large inputs", {"who": "size large"}, errors={"large": 40}),
    Cause("small inputs slow", {"who": "size small"}, bad={"small": 12}),
    Cause("one tenant slow", {"who": "tenant t4"}, bad={"t4": 12}),
    Cause("errors everywhere", {"everyone": "every value alike"}, errors={"*": 40}),
    Cause("gateway slow", {"everyone": "every value alike", "stage": "outside"}, bad={"*": 5}, stages={("*", "outside"): 20}),
    Cause("nothing measured changed", {"everyone": "every value alike"}, bad={"*": 5}),
    Cause("one replica fails", {"who": "replica r1"}, errors={"r1": 60}),
    Cause("mix of tenants", {"mix": "size large"}, rate={"large": 5}),
)  # fmt: skip
PAIRS = tuple(
    Cause(f"{one} and {other}", {"who": f"{one}, {other}"}, bad={one.split()[1]: 8, other.split()[1]: 8 * boost})
    for one, other, boost in (
        ("node n1", "tenant t3", 1.5), ("node n2", "tenant t1", 0.8), ("node n3", "tenant t2", 1), ("node n1", "size large", 1),
        ("node n2", "tenant t3", 1.5), ("node n3", "tenant t1", 0.8), ("replica r4", "tenant t2", 0.6),
        ("node n1", "tenant t2", 1), ("node n3", "tenant t3", 1.5), ("node n2", "tenant t2", 1),
    )
)  # fmt: skip


def world(cause: Cause | None, minutes: int, seed: int, rate_per_s: float = 60.0) -> tuple[Window, float]:
    """A window in which the cause begins at the minute that is returned. Every stream wanders (10 min memory) and has a daily season."""
    random = np.random.default_rng(seed)
    onset = int(minutes * random.uniform(0.35, 0.75))
    after = np.arange(minutes) >= onset
    clock = np.arange(minutes) / 1440
    season = 1 + 0.6 * np.sin(2 * np.pi * (clock + random.uniform()))
    wander = _wander(random, minutes)
    cells: dict[tuple[str, str, str], Counts] = {}
    for tenant, tenant_share in TENANTS.items():
        for replica, node in REPLICAS.items():
            for size, size_share in SIZES.items():
                names = {tenant, replica, node, size, "*"}
                own = _factors(cause, names)
                mean = 60 * rate_per_s * tenant_share * size_share / len(REPLICAS) * season
                total = random.poisson(mean * np.where(after, own["rate"], 1.0)).astype(float)
                odds = {
                    "slow": (0.003 if size == "small" else 0.05) * np.exp(wander),
                    "errors": np.full(minutes, 5e-4),
                    "refused": np.full(minutes, 1e-3),
                }
                bad = {}
                for signal, base in odds.items():
                    changed = base * np.where(after, own[signal], 1.0)
                    bad[signal] = random.binomial(total.astype(int), changed / (1 + changed)).astype(float)
                cells[tenant, replica, size] = Counts(total, bad)
    by = {
        "tenant": {one: _sum(cells, lambda key, one=one: key[0] == one) for one in TENANTS},
        "node": {one: _sum(cells, lambda key, one=one: REPLICAS[key[1]] == one) for one in dict.fromkeys(REPLICAS.values())},
        "replica": {one: _sum(cells, lambda key, one=one: key[1] == one) for one in REPLICAS},
        "size": {one: _sum(cells, lambda key, one=one: key[2] == one) for one in SIZES},
    }  # fmt: skip
    by["replica"] = {one: _timed(random, counts, one, cause, after) for one, counts in by["replica"].items()}
    by["node"] = {
        one: _with_stages(counts, [by["replica"][name] for name, node in REPLICAS.items() if node == one])
        for one, counts in by["node"].items()
    }
    whole = _with_stages(_sum(cells, lambda key: True), list(by["replica"].values()))
    window = Window(
        BEGIN_S, whole, by, {}, _gauges(random, cause, after), _changes(random, cause, minutes, onset), 200.0
    )
    return window, onset


def _factors(cause: Cause | None, names: set[str]) -> dict[str, float]:
    tables = (
        {}
        if cause is None
        else {"slow": cause.bad, "errors": cause.errors, "refused": cause.refused, "rate": cause.rate}
    )
    return {
        name: float(np.prod([factor for key, factor in tables.get(name, {}).items() if key in names]))
        for name in ("slow", "errors", "refused", "rate")
    }


def _wander(random: np.random.Generator, minutes: int) -> Array:
    """AR(1), deviation 0.3, memory 10 min."""
    keep, found = np.exp(-0.1), np.empty(minutes)
    found[0] = random.normal(0, 0.3)
    for i, step in enumerate(random.normal(0, 0.3 * np.sqrt(1 - keep**2), minutes - 1)):
        found[i + 1] = keep * found[i] + step
    return found


def _sum(cells: Mapping[tuple[str, str, str], Counts], chosen: Callable[..., bool]) -> Counts:
    own = [counts for key, counts in cells.items() if chosen(key)]
    signals = own[0].bad
    return Counts(sum(one.total for one in own), {name: sum(one.bad[name] for one in own) for name in signals})  # type: ignore[arg-type,misc]


def _timed(random: np.random.Generator, counts: Counts, replica: str, cause: Cause | None, after: Array) -> Counts:
    means = {}
    for stage, mean in STAGES.items():
        more = (
            0.0
            if cause is None
            else sum(
                ms
                for (place, name), ms in cause.stages.items()
                if name == stage and place in ("*", replica, REPLICAS[replica])
            )
        )
        means[stage] = (mean + np.where(after, more, 0.0)) * random.lognormal(0, 0.1, len(after))
    sums = {stage: counts.total * mean for stage, mean in means.items()}
    total = sum(sums.values())
    return Counts(counts.total, counts.bad, {**{k: v for k, v in sums.items() if k != "outside"}, "total": total})  # type: ignore[dict-item]


def _with_stages(counts: Counts, parts: list[Counts]) -> Counts:
    return Counts(counts.total, counts.bad, {name: sum(one.stages[name] for one in parts) for name in parts[0].stages})  # type: ignore[misc]


def _gauges(random: np.random.Generator, cause: Cause | None, after: Array) -> dict[str, Array]:
    base = {"retries": 20.0, "cache hits": 0.8}
    for node in ("n1", "n2", "n3"):
        base |= {f"cpu {node}": 0.4, f"disk wait {node}": 0.02, f"gpu clock {node}": 1900.0, f"memory {node}": 0.6}
    factors = {} if cause is None else cause.gauges
    return {
        name: value * np.where(after, factors.get(name, 1.0), 1.0) * random.lognormal(0, 0.05, len(after))
        for name, value in base.items()
    }


def _changes(random: np.random.Generator, cause: Cause | None, minutes: int, onset: float) -> tuple[Change, ...]:
    found = [
        Change(BEGIN_S + 60 * random.uniform(0, minutes), str(random.choice(DISTRACTORS)), f"other-{i}")
        for i in range(4)
    ]
    if cause is not None and cause.change is not None:
        found.append(Change(BEGIN_S + 60 * onset - random.uniform(0, 30), *cause.change))
    return tuple(found)


def is_right(found: Diagnosis, cause: Cause) -> bool:
    """The expected subjects are the first of their kinds, and the first hypothesis is one of them."""
    if found.shift.shape not in (Shape.STEP, Shape.RISING):
        return False
    first: dict[str, str] = {}
    for one in found.hypotheses:
        first.setdefault(one.kind, one.subject)
    top = found.hypotheses[0]
    return (
        all(first.get(kind) == name for kind, name in cause.expected.items())
        and cause.expected.get(top.kind) == top.subject
    )


def names_both(found: Diagnosis, cause: Cause) -> bool:
    named = {one.subject for one in found.hypotheses if one.kind == "who"}
    return set(cause.expected["who"].split(", ")) <= named


def is_right_or_unknown(found: Diagnosis, cause: Cause) -> bool:
    """No wrong dimension: what is named first of its kind is expected, or the diagnosis names no value."""
    named = [one for one in found.hypotheses if one.kind in ("who", "mix")]
    return not named or cause.expected.get(named[0].kind) == named[0].subject


LENGTHS = (60, 360, 1440)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print("| cause | right first | median error of its start, min |\n|---|---|---|")
    for number, cause in enumerate(TWELVE):
        right, errors = 0, []
        for run in range(given.runs):
            window, onset = world(cause, LENGTHS[run % 3], 1000 * given.seed + 100 * number + run)
            found = diagnose(window)
            right += is_right(found, cause)
            errors.append(abs(found.shift.at - onset))
        print(f"| {cause.name} | {right} of {given.runs} | {np.median(errors):.0f} |", flush=True)
    shifted = sum(
        diagnose(world(None, LENGTHS[run % 3], 5000 * given.seed + run)[0]).shift.shape is not Shape.NONE
        for run in range(given.runs)
    )
    print(f"| healthy | {given.runs - shifted} of {given.runs} no shift | |")
    for name, causes, test in (("unlisted", UNLISTED, is_right_or_unknown), ("pairs", PAIRS, names_both)):
        results = [test(diagnose(world(one, 360, 7000 * given.seed + i)[0]), one) for i, one in enumerate(causes)]
        wrong = ", ".join(one.name for one, is_good in zip(causes, results, strict=True) if not is_good)
        print(f"| {name} | {sum(results)} of {len(results)} | {wrong} |")
    window, _ = world(TWELVE[2], 14 * 1440, given.seed)
    began = time.monotonic()
    diagnose(window)
    print(f"\n14 days by minute: {time.monotonic() - began:.2f} s")


if __name__ == "__main__":
    main()
