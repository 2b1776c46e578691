"""The contract gate: what the server says, answers and refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from registry.core.kinds import spoken
from validators.core.contract import batch_sizes, compare_answer, compare_declared, judge_contract, tensors_of
from validators.core.edges import Edge, edges_of, judge_edges
from validators.core.input_use import MOST_TRIED, judge_input_use
from validators.core.inputs import Arrays, stack
from validators.core.largest_request import ByteEdges, byte_edges
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates.context import GateContext, example_items
from validators.execution.runners import contract as contract_runner


def contract_gate(context: GateContext) -> Judgement:
    """Does the server say and answer what the release declares, and the release what the model promises? Does it refuse the rest?"""
    policy = context.policy.of("contract")
    most, example = int(context.serving["max_batch_size"]), example_items(context, 1)[0]
    sizes = batch_sizes(policy["batch_sizes"], most)
    limits = context.envelope.get("limits") or {}
    edges, by_bytes = _edges(context, example, limits, most) if policy["edges"] else ((), ByteEdges())
    total = len(sizes) + len(edges)
    facts = contract_runner.observe(
        context.server,
        context.model,
        [example],
        sizes,
        has_batch_axis=context.has_batch_axis,
        timeout_s=policy["timeout_s"],
        progress=lambda done, _: context.progress(done, total),
    )
    declared = [
        *compare_declared("input", context.inputs, facts.inputs, by="The server"),
        *compare_declared("output", context.outputs, facts.outputs, by="The server"),
    ]
    for side, own in (("inputs", context.inputs), ("outputs", context.outputs)):
        promised = tensors_of(context.contract, side)
        if promised:
            declared += compare_declared(
                side[:-1],
                promised,
                own,
                by=f"{context.release}, against the model's contract,",
                extra_is_wrong=side == "inputs",
            )
    answered = {
        size: compare_answer(context.outputs, answer, batch_size=size if context.has_batch_axis else None)
        for size, answer in facts.answers.items()
    }
    found = judge_contract(declared, answered, refused=facts.refusals)
    if found.verdict is Verdict.PASSED:
        found = _input_use(context, found, limits, lambda: context.progress(len(sizes), total))
    if found.verdict is Verdict.FAILED or not edges:
        return found
    outcomes = contract_runner.try_edges(
        context.server,
        context.model,
        edges,
        stack([example], has_batch_axis=context.has_batch_axis),
        context.outputs,
        batch_size=1 if context.has_batch_axis else None,
        timeout_s=policy["timeout_s"],
        progress=lambda done: context.progress(len(sizes) + done, total),
    )
    context.progress(total, total)
    return judge_edges(found, [*by_bytes.known, *outcomes], not_tried=by_bytes.why_none)


def _input_use(
    context: GateContext, found: Judgement, limits: Mapping[str, Any], progress: Callable[[], None]
) -> Judgement:
    """The judgement, with whether answers come from the input."""
    use = contract_runner.try_inputs(
        context.server,
        context.model,
        context.inputs,
        example_items(context, MOST_TRIED),
        limits.get("input_values") or {},
        has_batch_axis=context.has_batch_axis,
        timeout_s=context.policy.of("contract")["timeout_s"],
        progress=progress,
    )
    return judge_input_use(found, use, context.outputs)


def _edges(
    context: GateContext, example: Arrays, limits: Mapping[str, Any], most: int
) -> tuple[tuple[Edge, ...], ByteEdges]:
    """All that are asked, and what is known of those by bytes."""
    inputs, model, speaks = context.inputs, context.model, context.speaks
    size_of = partial(contract_runner.gateway_bytes, model, speaks=speaks)
    by_bytes = byte_edges(inputs, example, limits, max_batch_size=most, size_of=size_of)
    bodies = spoken(speaks)[1].wrong(model) if speaks else None
    return (*edges_of(inputs, example, limits, max_batch_size=most, bodies=bodies), *by_bytes.edges), by_bytes
