"""The golden gate: right answers, those of the stable release, and the same in every batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.ports import InferenceError, InferenceServer
from validators.core import batches
from validators.core.answers import answers_in, choose_output, expected_labels, in_words
from validators.core.batches import Batch
from validators.core.contract import tensors_of
from validators.core.golden import Replay, judge_golden
from validators.core.golden_fit import misfit
from validators.core.inputs import Arrays, item_arrays
from validators.core.rows import expected_rows, judged_outputs, rows_in
from validators.core.ruler import Answer, Ruler, ruler_of
from validators.core.sample import sample_of
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates.context import GateContext
from validators.execution.runners import golden as golden_runner
from validators.execution.runners.golden import Reader

#: Of the batches that chance draws.
_SEED = 1


def golden_gate(context: GateContext) -> Judgement:
    """Are its answers right, and are they those of the stable release, on every slice and in every batch?"""
    policy = context.policy.of("golden")
    wrong = misfit(policy, context.items, context.outputs)
    if wrong:
        return Judgement(Verdict.ERRORED, f"The golden set cannot be asked: {wrong.message}. {wrong.fix}")
    asked = _ask(context, _question(context))
    judgement = judge_golden(asked.replay, policy)
    evidence = {**judgement.evidence, "golden_set": policy["set"], **asked.evidence}
    return Judgement(judgement.verdict, judgement.reason, evidence)


@dataclass(frozen=True)
class _Question:
    """What is read from the answers and how it is judged; the same for the release and for the stable one."""

    reader: Reader
    expected: Callable[[Sequence[Answer | None]], Sequence[Answer]]  # in the words of these answers
    ruler: Callable[[float], Ruler]  # by stable's own spread
    words: Callable[[Answer | None], Answer | None] = lambda answer: answer


@dataclass(frozen=True)
class _Asked:
    replay: Replay
    evidence: dict[str, Any]


@dataclass(frozen=True)
class _Stable:
    """What the stable release answered; None where there is nothing to compare with, and `source` says why."""

    answers: Sequence[Answer | None] | None
    source: str
    noise: float = 0.0


@dataclass
class _Plan:
    """Which batches are asked of the release: the whole set, then a sample in other ones."""

    whole: list[Batch]
    again: dict[str, list[Batch]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(map(len, [batch for part in (self.whole, *self.again.values()) for batch in part]))


def _question(context: GateContext) -> _Question:
    policy = context.policy.of("golden")
    if policy["compare"] == "label":
        output, names = choose_output(context.outputs, policy["output"]), policy["labels"]
        return _Question(
            Reader((output.name,), lambda outputs, count: answers_in(outputs[output.name], count)),
            lambda answers: expected_labels(context.items, answers, names),
            lambda _: ruler_of(policy, (), {}),
            lambda answer: in_words(answer, names),
        )
    outputs = judged_outputs(context.items, context.outputs, policy["output"])
    rows, types = expected_rows(context.items, outputs), {tensor.name: tensor.data_type for tensor in outputs}
    return _Question(
        Reader(tuple(types), lambda found, count: rows_in(found, tuple(types), count)),
        lambda _: rows,
        lambda noise: ruler_of(policy, rows, types, noise=noise),
    )


def _ask(context: GateContext, question: _Question) -> _Asked:
    policy, baseline = context.policy.of("golden"), context.baseline
    arrays = [item_arrays(context.inputs, item.inputs) for item in context.items]
    sample = sample_of(len(arrays), policy["alone_items"] if context.has_batch_axis else 0)
    plan = _plan(arrays, sample, policy["batch_size"], int(context.serving["max_batch_size"]))
    again = len(sample) if policy["compare"] != "label" else 0
    total = plan.count + (len(arrays) + again if baseline and baseline.is_asked else 0)
    done = 0

    def replayed(batch_list: Sequence[Batch]) -> golden_runner.Answers:
        nonlocal done
        before = done
        done += sum(map(len, batch_list))
        return _replay(
            context, context.server, arrays, batch_list, question, lambda now: context.progress(before + now, total)
        )

    candidate = replayed(plan.whole)
    batched = {
        how: [(at, question.words(answer)) for at, answer in replayed(batch_list).given]
        for how, batch_list in plan.again.items()
    }
    stable = _stable(context, question, sample if again else (), lambda now: context.progress(plan.count + now, total))
    labels = candidate.in_order(len(arrays))
    words = [question.words(answer) for answer in labels]
    replay = Replay(
        items=context.items,
        expected=question.expected(words),
        candidate=words,
        baseline=None if stable.answers is None else [question.words(answer) for answer in stable.answers],
        baseline_name=baseline.name if baseline else "",
        alone=dict(batched.pop("alone", ())),
        problem="; ".join(candidate.problems),
        ruler=question.ruler(stable.noise),
        batched=batched,
    )
    evidence = {"output": ", ".join(question.reader.names), "baseline_source": stable.source}
    return _Asked(replay, evidence | ({"predictions": labels} if policy["compare"] == "label" else {}))


def _plan(arrays: Sequence[Arrays], sample: Sequence[int], batch_size: int, most: int) -> _Plan:
    """`most` is the release's max_batch_size, 0 for one without a batch axis: then there is nothing to ask again."""
    shapes = [tuple((name, array.shape) for name, array in sorted(item.items())) for item in arrays]
    plan = _Plan(batches.in_order(shapes, max(1, min(batch_size, most))))
    if sample:
        plan.again["alone"] = [(at,) for at in sample]
    if sample and most > 1:
        plan.again["full"] = batches.full(sample, shapes, most)
        plan.again["random"] = batches.at_random(sample, shapes, most, seed=_SEED)
    return plan


def _replay(
    context: GateContext,
    server: InferenceServer,
    arrays: Sequence[Arrays],
    batch_list: Sequence[Batch],
    question: _Question,
    progress: Callable[[int], None],
    serving: Mapping[str, Any] | None = None,
) -> golden_runner.Answers:
    """`serving` is the asked release's, where that is not the judged one."""
    return golden_runner.replay(
        server,
        context.model,
        arrays,
        batch_list,
        question.reader,
        has_batch_axis=int((serving or context.serving)["max_batch_size"]) > 0,
        timeout_s=context.policy.of("golden")["timeout_s"],
        progress=progress,
    )


def _stable(
    context: GateContext, question: _Question, sample: Sequence[int], progress: Callable[[int], None]
) -> _Stable:
    """The stable release's answers, and how far those of `sample` are apart when they are asked again, one by one."""
    baseline = context.baseline
    if baseline is None:
        return _Stable(None, "no stable release")
    if baseline.answers is not None:
        return _Stable(baseline.answers, "the stable release's own report")
    if baseline.server is None:
        return _Stable(None, baseline.absent_because)
    serving = baseline.serving
    inputs, most = tensors_of(serving, "inputs"), int(serving["max_batch_size"])
    arrays = [item_arrays(inputs, item.inputs) for item in context.items]
    plan = _plan(arrays, sample, context.policy.of("golden")["batch_size"], most)
    try:
        found = _replay(context, baseline.server, arrays, plan.whole, question, progress, serving)
        answers = found.in_order(len(arrays))
        if None in answers:
            return _Stable(None, f"{baseline.name} left items unanswered: {'; '.join(found.problems)}")
        alone = _replay(
            context, baseline.server, arrays, plan.again.get("alone", ()), question,
            lambda now: progress(len(arrays) + now), serving,
        )  # fmt: skip
    except InferenceError as error:
        return _Stable(None, f"the server of {baseline.name} did not answer: {error.message}")
    distance = question.ruler(0.0).distance
    apart = [distance(answers[at], answer) for at, answer in alone.given if answer is not None]
    noise = max((one for one in apart if math.isfinite(one)), default=0.0)
    return _Stable(answers, f"{baseline.name} in production", noise)
