"""The golden gate: right answers, and those of the stable release."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from serving.ports import InferenceError, InferenceServer
from validators.core.answers import choose_output, expected_labels, in_words
from validators.core.contract import Tensor, tensors_of
from validators.core.golden import Replay, judge_golden
from validators.core.golden_set import Label
from validators.core.inputs import Arrays, item_arrays
from validators.core.sample import sample_of
from validators.core.verdict import Judgement
from validators.execution.gates.context import GateContext
from validators.execution.runners import golden as golden_runner


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
