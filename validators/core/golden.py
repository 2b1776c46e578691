"""The golden gate's judgement: accuracy, agreement with the baseline, and what happened to each slice.

Two rules. `measured`: the golden set itself is the standard, and its measured values decide; a drop beyond the limit that
chance explains is undecided. `certified`: a limit holds only when the confidence bound is beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from validators.core import compare
from validators.core.compare import Paired, Share
from validators.core.golden_set import GoldenItem, Label
from validators.core.verdict import Judgement, Verdict, worst_of


@dataclass(frozen=True)
class Replay:
    """What releases answered to the items, in the items' order; None for an item without a usable answer.

    `alone` holds answers of a sample, {position: answer}, asked one at a time.
    """

    items: Sequence[GoldenItem]
    labels: Sequence[Label]
    candidate: Sequence[Label | None]
    baseline: Sequence[Label | None] | None = None
    baseline_name: str = ""
    alone: Mapping[int, Label | None] = field(default_factory=dict)
    problem: str = ""  # the first reason why an item has no answer


@dataclass(frozen=True)
class Check:
    """One limit of the policy, and how it came out."""

    name: str
    limit: float
    measured: float
    verdict: Verdict
    sentence: str


def judge_golden(replay: Replay, policy: Mapping[str, Any]) -> Judgement:
    """The verdict under a policy's golden section (see `validators.core.policy`), with all that was counted as evidence."""
    confidence = float(policy["confidence"])
    rights = sum(a == b for a, b in zip(replay.candidate, replay.labels, strict=True))
    accuracy = compare.share_of(rights, len(replay.items), confidence=confidence)
    evidence: dict[str, Any] = {"items": len(replay.items), "accuracy": _shown(accuracy), "rule": policy["rule"]}
    checks = [_answered(replay), _at_least("accuracy", policy["min_accuracy"], accuracy, policy["rule"])]
    checks.append(_flips(replay, policy, evidence))
    if replay.baseline is not None:
        checks += _against_baseline(replay, policy, evidence)
    else:
        evidence["baseline"] = None
    evidence["slices"] = _slices(replay, evidence.get("slices", {}))
    return _summed_up([check for check in checks if check], replay, accuracy, evidence)


def _summed_up(checks: list[Check], replay: Replay, accuracy: Share, evidence: dict[str, Any]) -> Judgement:
    evidence["checks"] = [{**asdict(check), "verdict": check.verdict.value} for check in checks]
    verdict = worst_of(check.verdict for check in checks) if checks else Verdict.PASSED
    if verdict is not Verdict.PASSED:
        return Judgement(verdict, " ".join(check.sentence for check in checks if check.verdict is verdict), evidence)
    agreement = evidence.get("agreement")
    compared = (
        f"{agreement['value']:.1%} of its answers are those of {replay.baseline_name}"
        if agreement
        else "there is no stable release to compare with, so only absolute limits were judged"
    )
    return Judgement(verdict, f"{accuracy.value:.1%} of {accuracy.n} answers are right; {compared}.", evidence)


def _answered(replay: Replay) -> Check:
    missing = sum(answer is None for answer in replay.candidate)
    share = missing / len(replay.items)
    why = f": {replay.problem}" if replay.problem else ""
    return Check(
        "unanswered",
        0.0,
        share,
        Verdict.FAILED if missing else Verdict.PASSED,
        f"{missing} of {len(replay.items)} items have no usable answer{why}.",
    )


def _at_least(name: str, limit: float | None, share: Share, rule: str) -> Check | None:
    if limit is None:
        return None
    if rule == "certified":
        verdict = Verdict.PASSED if share.low >= limit else Verdict.FAILED if share.high < limit else Verdict.UNDECIDED
    else:
        verdict = Verdict.PASSED if share.value >= limit else Verdict.FAILED
    return Check(
        name,
        limit,
        share.value,
        verdict,
        f"The {name} is {share.value:.2%} (interval {share.low:.2%} to {share.high:.2%}) of {share.n} items; "
        f"{limit:.2%} is asked.",
    )


def _at_most_drop(
    name: str, limit: float | None, paired: Paired, policy: Mapping[str, Any], *, is_worse: bool
) -> Check | None:
    """`is_worse`: see `_are_worse`."""
    if limit is None:
        return None
    if policy["rule"] == "certified":
        passed = compare.is_not_worse(paired, limit, confidence=float(policy["confidence"]))
    else:
        passed = paired.drop <= limit + 1e-12
    verdict = Verdict.PASSED if passed else Verdict.FAILED if is_worse else Verdict.UNDECIDED
    doubt = "" if verdict is not Verdict.UNDECIDED else " That may be chance: add items to tell."
    return Check(
        name,
        limit,
        paired.drop,
        verdict,
        f"The {name} is {paired.drop * 100:.1f} points ({paired.lost} answers lost, {paired.won} won, of {paired.n}); "
        f"{limit * 100:.1f} are allowed.{doubt}",
    )


def _are_worse(parts: Sequence[Paired], limit: float | None, policy: Mapping[str, Any]) -> list[bool]:
    """Which drops are shown to exceed the limit (`certified`), or to be more than chance (`measured`), all of them taken together.

    One slice in twenty would fail by chance alone at a confidence of .95; so the confidence holds for all slices at once.
    """
    margin = (limit or 0.0) if policy["rule"] == "certified" else 0.0
    return compare.holm([compare.worse_p(one, margin) for one in parts], alpha=1 - float(policy["confidence"]))


def _against_baseline(replay: Replay, policy: Mapping[str, Any], evidence: dict[str, Any]) -> list[Check | None]:
    assert replay.baseline is not None
    confidence = float(policy["confidence"])
    agreed = compare.agreement(replay.candidate, replay.baseline, confidence=confidence)
    paired = compare.pair(replay.candidate, replay.baseline, replay.labels)
    margin = compare.certifiable_margin(paired, confidence=confidence)
    evidence |= {
        "baseline": replay.baseline_name,
        "agreement": _shown(agreed),
        "paired": {**asdict(paired), "drop": round(paired.drop, 6)},
        "smallest_certifiable_drop": margin,
    }
    checks = [
        _at_least(f"agreement with {replay.baseline_name}", policy["min_agreement"], agreed, policy["rule"]),
        _at_most_drop(
            "accuracy drop",
            policy["max_accuracy_drop"],
            paired,
            policy,
            is_worse=_are_worse([paired], policy["max_accuracy_drop"], policy)[0],
        ),
    ]
    return checks + _slices_against_baseline(replay, policy, evidence)


def _slices_against_baseline(replay: Replay, policy: Mapping[str, Any], evidence: dict[str, Any]) -> list[Check | None]:
    assert replay.baseline is not None
    slices, judged = {}, {}
    for name, (candidate, baseline, labels) in compare.by_slice(
        [item.slice for item in replay.items], replay.candidate, replay.baseline, replay.labels
    ).items():
        part = compare.pair(candidate, baseline, labels)
        is_judged = part.n >= policy["min_slice_items"]
        slices[name] = {
            "drop": round(part.drop, 6),
            "lost": part.lost,
            "won": part.won,
            "is_judged": is_judged,
            "agreement": round(compare.agreement(candidate, baseline).value, 6),
        }
        if is_judged:
            judged[name] = part
    evidence["slices"] = slices
    limit = policy["max_slice_drop"]
    return [
        _at_most_drop(f"accuracy drop on slice {name}", limit, part, policy, is_worse=is_worse)
        for (name, part), is_worse in zip(judged.items(), _are_worse(list(judged.values()), limit, policy), strict=True)
    ]


def _slices(replay: Replay, so_far: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    cut = compare.by_slice([item.slice for item in replay.items], replay.candidate, replay.labels)
    return {
        name: {
            "items": len(labels),
            "accuracy": round(sum(a == b for a, b in zip(answers, labels, strict=True)) / len(labels), 6),
            **so_far.get(name, {}),
        }
        for name, (answers, labels) in cut.items()
    }


def _flips(replay: Replay, policy: Mapping[str, Any], evidence: dict[str, Any]) -> Check | None:
    """Batch invariance: how many answers change when the item is asked alone. Quantised models do change some."""
    if not replay.alone:
        evidence["batch_invariance"] = None
        return None
    flipped = sum(replay.candidate[at] != answer for at, answer in replay.alone.items())
    share = compare.share_of(flipped, len(replay.alone), confidence=float(policy["confidence"]))
    evidence["batch_invariance"] = {
        "flipped": flipped,
        "asked_alone": share.n,
        "low": round(share.low, 6),
        "high": round(share.high, 6),
    }
    limit = policy["max_batch_flips"]
    if limit is None:
        return None
    return Check(
        "batch flips",
        limit,
        share.value,
        Verdict.PASSED if share.value <= limit else Verdict.FAILED,
        f"{flipped} of {share.n} answers change when the item is asked alone; {limit:.2%} are allowed.",
    )


def _shown(share: Share) -> dict[str, Any]:
    value = None if math.isnan(share.value) else round(share.value, 6)
    return {
        "value": value,
        "count": share.count,
        "n": share.n,
        "low": round(share.low, 6),
        "high": round(share.high, 6),
    }
