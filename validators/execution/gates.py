"""The gates, by name. A gate measures through its runner, and its core judges what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from serving.ports import InferenceError, InferenceServer
from validators.core.answers import choose_output, expected_labels, in_words
from validators.core.cold_start import judge_cold_start
from validators.core.contract import Tensor, batch_sizes, compare_answer, compare_declared, judge_contract, tensors_of
from validators.core.edges import edges_of, judge_edges
from validators.core.golden import Replay, judge_golden
from validators.core.golden_set import GoldenItem, Label
from validators.core.inputs import Arrays, item_arrays, longest_item, made_up_item, stack
from validators.core.load import (
    burst_of,
    generator_limit,
    judge_full,
    judge_load,
    max_lag_ms,
    poisson_schedule,
    proven_all_the_same,
    summarise,
)
from validators.core.policy import Policy
from validators.core.sample import sample_of
from validators.core.verdict import Judgement, Verdict
from validators.execution.runners import cold_start as cold_start_runner
from validators.execution.runners import contract as contract_runner
from validators.execution.runners import golden as golden_runner
from validators.execution.runners import load as load_runner

#: The objective is measured again when the generator was late: other work on the machine comes and goes.
_LOAD_TRIES = 3
_FULL_TRIES = 2
_PAYLOADS = 64


@dataclass(frozen=True)
class Baseline:
    """The stable release to compare with: its stored answers, or else its server, or neither (`absent_because`)."""

    name: str
    answers: Sequence[Label | None] | None = None
    server: InferenceServer | None = None
    serving: Mapping[str, Any] = field(default_factory=dict)
    absent_because: str = ""

    @property
    def is_asked(self) -> bool:
        return self.answers is None and self.server is not None


@dataclass(frozen=True)
class GateContext:
    """All that a gate may know. `progress(done, total)` may raise, which ends the gate without a verdict.

    The count of done work never falls; more work than expected raises the total.
    """

    model: str
    release: str
    serving: Mapping[str, Any]  # of the manifest
    envelope: Mapping[str, Any]
    contract: Mapping[str, Any]  # of the model
    policy: Policy
    server: InferenceServer
    timings: Mapping[str, float]
    progress: Callable[[int, int], None]
    items: Sequence[GoldenItem] = ()
    baseline: Baseline | None = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tensors_of(self.serving, "inputs")

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tensors_of(self.serving, "outputs")

    @property
    def has_batch_axis(self) -> bool:
        return int(self.serving["max_batch_size"]) > 0


def contract_gate(context: GateContext) -> Judgement:
    """Does the server say and answer what the release declares, and the release what the model promises? Does it refuse the rest?"""
    policy = context.policy.of("contract")
    most, example = int(context.serving["max_batch_size"]), example_items(context, 1)[0]
    sizes = batch_sizes(policy["batch_sizes"], most)
    limits = context.envelope.get("limits") or {}
    edges = edges_of(context.inputs, example, limits, max_batch_size=most) if policy["edges"] else ()
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
    if found.verdict is not Verdict.PASSED or not edges:
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
    return judge_edges(found, outcomes)


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
    return judge_cold_start(context.timings, latencies, policy, context.envelope)


def golden_gate(context: GateContext) -> Judgement:
    """Are its answers right, and are they those of the stable release, on every slice?"""
    policy = context.policy.of("golden")
    output = choose_output(context.outputs, policy["output"])
    arrays = [item_arrays(context.inputs, item.inputs) for item in context.items]
    sample = sample_of(len(arrays), policy["alone_items"] if context.has_batch_axis else 0)
    own = len(arrays) + len(sample)
    total = own + (len(arrays) if context.baseline and context.baseline.is_asked else 0)
    candidate = _replay(
        context, context.server, arrays, output, policy["batch_size"], lambda done: context.progress(done, total)
    )
    alone = _replay(
        context,
        context.server,
        [arrays[at] for at in sample],
        output,
        1,
        lambda done: context.progress(len(arrays) + done, total),
    )
    baseline, source = _baseline_answers(context, output, lambda done: context.progress(own + done, total))
    names = policy["labels"]
    words = [in_words(answer, names) for answer in candidate.labels]
    judgement = judge_golden(
        Replay(
            items=context.items,
            labels=expected_labels(context.items, words, names),
            candidate=words,
            baseline=None if baseline is None else [in_words(answer, names) for answer in baseline],
            baseline_name=context.baseline.name if context.baseline else "",
            alone={at: in_words(answer, names) for at, answer in zip(sample, alone.labels, strict=True)},
            problem="; ".join(candidate.problems),
        ),
        policy,
    )
    evidence = {
        **judgement.evidence,
        "golden_set": policy["set"],
        "output": output.name,
        "baseline_source": source,
        "predictions": candidate.labels,
    }
    return Judgement(judgement.verdict, judgement.reason, evidence)


def load_gate(context: GateContext) -> Judgement:
    """Does it meet its latency objective and answer without errors at a given rate?"""
    policy = context.policy.of("load")
    batches, longest = _payloads(context, policy["longest_frac"])
    in_turn = [batches[at] for at in np.random.default_rng(policy["seed"]).permutation(len(batches))]
    judgement = None
    for attempt in range(_LOAD_TRIES):
        schedule = poisson_schedule(policy["rate_per_s"], policy["duration_s"], seed=policy["seed"] + attempt)
        attempts = load_runner.drive(
            context.server,
            context.model,
            in_turn,
            schedule,
            timeout_s=policy["timeout_s"],
            progress=partial(_again, context.progress, attempt),
        )
        summary = summarise(attempts, duration_s=policy["duration_s"], slo_ms=policy["slo_ms"] or float("inf"))
        judgement = judge_load(summary, policy)
        is_limited = generator_limit(summary, max_lag_ms=max_lag_ms(policy))
        if not is_limited or proven_all_the_same(summary, judgement, policy):
            break
    assert judgement is not None
    before = f" (measured {attempt + 1} times, as this machine sent too late before)" if attempt else ""
    reason = f"{judgement.reason.removesuffix('.')}{before}."
    told = Judgement(judgement.verdict, reason, {**judgement.evidence, "tries": attempt + 1, **longest})
    if told.verdict in (Verdict.FAILED, Verdict.ERRORED):
        return told
    sent = (attempt + 1) * len(schedule)
    return _when_full(context, batches, told, beat=lambda: context.progress(sent, sent))


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
        instances=sum(int(group["count"]) for group in context.serving.get("instance_group") or ({"count": 1},)),
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


#: Closed on purpose: a policy names gates, it does not bring code.
GATES: dict[str, Callable[[GateContext], Judgement]] = {
    "contract": contract_gate,
    "cold_start": cold_start_gate,
    "golden": golden_gate,
    "load": load_gate,
}


def run_gate(name: str, context: GateContext) -> Judgement:
    """The gate's judgement; a server that is gone, or a set that does not fit, is `errored`, as the check did not happen."""
    try:
        return GATES[name](context)
    except InferenceError as error:
        return Judgement(
            Verdict.ERRORED, f"The server of {context.release} could not be asked: {error.message} [{error.reason}]"
        )
    except ValueError as error:
        return Judgement(Verdict.ERRORED, f"The gate could not be run: {error}.")


def example_items(context: GateContext, most: int) -> list[Arrays]:
    """Up to `most` real items: golden ones, else the release's own warm-up, else one that is made up. At least one."""
    if context.items:
        return [item_arrays(context.inputs, item.inputs) for item in context.items[:most]]
    for declared in context.serving.get("warmup") or ():
        try:
            return [item_arrays(context.inputs, declared["inputs"])]
        except ValueError:
            continue  # it states a whole batch, not an item
    return [made_up_item(context.inputs, seed=0)]


def _replay(
    context: GateContext,
    server: InferenceServer,
    arrays: Sequence[Arrays],
    output: Tensor,
    batch_size: int,
    progress: Callable[[int], None],
) -> golden_runner.Answers:
    most = max(1, int(context.serving["max_batch_size"]))
    return golden_runner.replay(
        server,
        context.model,
        arrays,
        output,
        batch_size=min(batch_size, most),
        has_batch_axis=context.has_batch_axis,
        timeout_s=context.policy.of("golden")["timeout_s"],
        progress=progress,
    )


def _baseline_answers(
    context: GateContext, output: Tensor, progress: Callable[[int], None]
) -> tuple[Sequence[Label | None] | None, str]:
    """(answers, where they come from). None where there is nothing to compare with; the second part says why."""
    baseline = context.baseline
    if baseline is None:
        return None, "no stable release"
    if baseline.answers is not None:
        return baseline.answers, "the stable release's own report"
    if baseline.server is None:
        return None, baseline.absent_because
    policy = context.policy.of("golden")
    inputs, most = tensors_of(baseline.serving, "inputs"), int(baseline.serving["max_batch_size"])
    arrays = [item_arrays(inputs, item.inputs) for item in context.items]
    try:
        found = golden_runner.replay(
            baseline.server,
            context.model,
            arrays,
            output,
            batch_size=min(policy["batch_size"], max(1, most)),
            has_batch_axis=most > 0,
            timeout_s=policy["timeout_s"],
            progress=progress,
        )
    except InferenceError as error:
        return None, f"the server of {baseline.name} did not answer: {error.message}"
    if None in found.labels:
        return None, f"{baseline.name} left items unanswered: {'; '.join(found.problems)}"
    return found.labels, f"{baseline.name} in production"
