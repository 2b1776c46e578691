"""What a policy may ask of other batchings, `capacity.sweep`: which, at which rates, and for how long. Nothing is judged by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from registry.core.schema import Integer, ListOf, Number, Problem, Record, may
from validators.core.capacity_search import BATCHES_SHARE

#: Of the budget, for requests; the rest is for servers to come up and to go.
LOAD_SHARE = 0.6
#: A run that is shorter tells nothing.
LEAST_RUN_S = 5

SWEEP = Record(
    {
        "max_queue_delay_us": may(ListOf(Integer(0, 1_000_000, unit="microseconds"), most=8), []),
        "max_batch_size": may(ListOf(Integer(1, 65_536, unit="items"), most=4), []),
        "of_proven": may(ListOf(Number(0.05, 2), least=1, most=4), [0.5, 0.9, 1.2]),
        "budget_s": may(Number(20, 3600, unit="seconds"), 240),
    }
)


def most_batchings(sweep: Mapping[str, Any]) -> int:
    """How many servers come up, one after the other, with the release's own two."""
    return max(1, len(sweep["max_queue_delay_us"])) * max(1, len(sweep["max_batch_size"])) + 2


def run_s(sweep: Mapping[str, Any]) -> int:
    """How long each batching is asked at each rate, in whole seconds."""
    runs = most_batchings(sweep) * len(sweep["of_proven"])
    return int(LOAD_SHARE * float(sweep["budget_s"]) / runs)


def problems_of(capacity: Mapping[str, Any], gate_timeout_s: float) -> Iterator[Problem]:
    """What is wrong with the sweep of a capacity section, if it asks for one. A section that could not be read is passed over."""
    sweep = capacity.get("sweep")
    if not sweep or not {"max_queue_delay_us", "max_batch_size", "of_proven", "budget_s"} <= set(sweep):
        return
    if not sweep["max_queue_delay_us"] and not sweep["max_batch_size"]:
        fix = "State max_queue_delay_us, max_batch_size, or both."
        yield Problem("capacity.sweep", "it names no other batching.", fix)
    if run_s(sweep) < LEAST_RUN_S:
        asked = f"{most_batchings(sweep)} servers (the release's own batching twice) at {len(sweep['of_proven'])} rates"
        says = f"{asked} leave {run_s(sweep)} s for each, and {LEAST_RUN_S} s are the least."
        yield Problem("capacity.sweep.budget_s", says, "Raise it, or try fewer batchings or rates.")
    if (1 + BATCHES_SHARE) * float(capacity.get("budget_s") or 0) + float(sweep["budget_s"]) > gate_timeout_s:
        says = "with the search before it, it is longer than any gate may take, gate_timeout_s."
        yield Problem("capacity.sweep.budget_s", says, "Raise gate_timeout_s, or shorten one of them.")
