"""The load gate: the objective at a rate, where the time goes, and what a full server does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from serving.ports import InferenceError
from validators.core.inputs import Arrays, longest_item, stack
from validators.core.load import (
    arrivals,
    burst_of,
    generator_limit,
    judge_full,
    judge_load,
    max_lag_ms,
    proven_all_the_same,
    summarise,
)
from validators.core.stages import stages_between
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates.context import GateContext, example_items
from validators.execution.runners import load as load_runner

#: The objective is measured again when the generator was late: other work on the machine comes and goes.
_LOAD_TRIES = 3
_FULL_TRIES = 2
_PAYLOADS = 64


def load_gate(context: GateContext) -> Judgement:
    """Does it meet its latency objective and answer without errors at a given rate?"""
    policy = context.policy.of("load")
    batches, longest = _payloads(context, policy["longest_frac"])
    in_turn = [batches[at] for at in np.random.default_rng(policy["seed"]).permutation(len(batches))]
    judgement, stages = None, None
    for attempt in range(_LOAD_TRIES):
        before, began = _statistics(context), time.monotonic()
        schedule = arrivals(
            policy["rate_per_s"], policy["duration_s"], seed=policy["seed"] + attempt, cv=policy["arrivals_cv"]
        )
        attempts = load_runner.drive(
            context.server,
            context.model,
            in_turn,
            schedule,
            timeout_s=policy["timeout_s"],
            progress=partial(_again, context.progress, attempt),
        )
        wall_s, after = time.monotonic() - began, _statistics(context)
        stages = stages_between(before, after, wall_s=wall_s, instances=context.instances)
        summary = summarise(attempts, duration_s=policy["duration_s"], slo_ms=policy["slo_ms"] or float("inf"))
        judgement = judge_load(summary, policy)
        is_limited = generator_limit(summary, max_lag_ms=max_lag_ms(policy))
        if not is_limited or proven_all_the_same(summary, judgement, policy):
            break
    assert judgement is not None
    repeated = f" (measured {attempt + 1} times, as this machine sent too late before)" if attempt else ""
    reason = f"{judgement.reason.removesuffix('.')}{repeated}."
    told = Judgement(
        judgement.verdict, reason, {**judgement.evidence, "stages": stages, "tries": attempt + 1, **longest}
    )
    if told.verdict in (Verdict.FAILED, Verdict.ERRORED):
        return told
    sent = (attempt + 1) * len(schedule)
    return _when_full(context, batches, told, beat=lambda: context.progress(sent, sent))


def _statistics(context: GateContext) -> dict[str, Any]:
    """The server's counters; none where it does not tell, which is for the requests to judge."""
    try:
        return context.server.statistics(context.model)
    except InferenceError:
        return {}


def _when_full(
    context: GateContext, batches: Sequence[Arrays], found: Judgement, *, beat: Callable[[], None]
) -> Judgement:
    """What was found, unless a server with a queue breaks or does less work than it is asked for.

    A stall of this machine can make it slow: twice, then. It makes no errors, and time-outs leave work behind them.
    """
    policy, judgement = context.policy.of("load"), found
    p50_s = found.evidence["latency_ms"].get("p50", 0.0) / 1000
    burst = burst_of(
        policy,
        p50_s=p50_s,
        max_batch_size=int(context.serving["max_batch_size"]),
        instances=context.instances,
        max_concurrency=(context.envelope.get("limits") or {}).get("max_concurrency"),
    )
    for _ in range(_FULL_TRIES):
        attempts = load_runner.all_at_once(context.server, context.model, batches, burst, beat=beat)
        judgement = judge_full(found, attempts, burst, policy, p50_s=p50_s)
        if judgement.verdict is found.verdict or judgement.evidence["full_errors"]:
            break
    return judgement


def _payloads(context: GateContext, longest_frac: float) -> tuple[list[Arrays], dict[str, Any]]:
    """(requests, what the evidence says of the longest among them).

    They are what users will send: examples, and evenly among them inputs as long as the release's envelope lets them be.
    """
    items = example_items(context, _PAYLOADS)
    longest, longest_of = longest_item(context.inputs, context.envelope.get("limits") or {}, items[0])
    if longest_of:
        count = round(longest_frac * _PAYLOADS)
        evenly = {int((at + 0.5) * _PAYLOADS / count) for at in range(count)}
        items = [longest if at in evenly else items[at % len(items)] for at in range(_PAYLOADS)]
    told = {"longest_frac": longest_frac if longest_of else 0.0, "longest_of": longest_of}
    return [stack([item], has_batch_axis=context.has_batch_axis) for item in items], told


def _again(progress: Callable[[int, int], None], earlier: int, done: int, total: int) -> None:
    """The progress of one more run as large as the `earlier` ones, as a part of the whole."""
    progress(earlier * total + done, (earlier + 1) * total)
