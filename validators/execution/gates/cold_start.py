"""The cold start gate: ready in time, and truly ready."""

from __future__ import annotations

from validators.core.cold_start import judge_cold_start
from validators.core.inputs import stack
from validators.core.verdict import Judgement
from validators.execution.gates.context import GateContext, example_items
from validators.execution.runners import cold_start as cold_start_runner


def cold_start_gate(context: GateContext) -> Judgement:
    """Is it ready in time, and is ready true: are the first inferences as fast as later ones?"""
    policy = context.policy.of("cold_start")
    latencies = cold_start_runner.first_latencies_ms(
        context.server,
        context.model,
        stack(example_items(context, 1), has_batch_axis=context.has_batch_axis),
        count=policy["inferences"],
        timeout_s=policy["timeout_s"],
        progress=context.progress,
    )
    return judge_cold_start(context.timings, latencies, policy)
