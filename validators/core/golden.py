"""The golden gate's judgement: accuracy, agreement with the baseline, and what happened to each slice.

Whatever the answers are, a row is right or it is not, and two answers are the same or they are not: a `Ruler` says which.

Two rules. `measured`: the golden set itself is the standard, and its measured values decide; a drop beyond the limit that
chance explains is undecided. `certified`: a limit holds only when the confidence bound is beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from validators.core import compare
from validators.core.compare import Share
from validators.core.golden_checks import Check, are_worse, at_least, at_most_drop, slices_at_least
from validators.core.golden_length import length_shift
from validators.core.golden_off import off_by, worst_rows
from validators.core.golden_set import GoldenItem
from validators.core.ruler import COMPARISONS, LABELS, SPREAD, Answer, Kind, Ruler
from validators.core.verdict import Judgement, Verdict, worst_of


@dataclass(frozen=True)
class Replay:
    """What releases answered to the items, in the items' order; None for an item without a usable answer.

    `alone` holds answers of a sample, {position: answer}, asked one at a time; `batched` those of the same sample in other
    batches, {how: [(position, answer)]}.
    """

    items: Sequence[GoldenItem]
    expected: Sequence[Answer]
    candidate: Sequence[Answer | None]
    baseline: Sequence[Answer | None] | None = None
    baseline_name: str = ""
    alone: Mapping[int, Answer | None] = field(default_factory=dict)
    problem: str = ""  # the first reason why an item has no answer
    ruler: Ruler = LABELS
    batched: Mapping[str, Sequence[tuple[int, Answer | None]]] = field(default_factory=dict)

    def off(self, answers: Sequence[Answer | None]) -> list[float]:
        """How far each of these answers is from what is expected; inf where there is none."""
        return self.ruler.distances(self.expected, answers)

    def rights(self, off: Sequence[float]) -> list[bool]:
        """Which answers are right that are so far off, by each item's own limit or by the ruler's."""
        usual = self.ruler.right_within
        own = (item.right_within for item in self.items)
        return [one <= (usual if limit is None else limit) for one, limit in zip(off, own, strict=True)]


def judge_golden(replay: Replay, policy: Mapping[str, Any]) -> Judgement:
    """The verdict under a policy's golden section (see `validators.core.policy`), with all that was counted as evidence."""
    off = replay.off(replay.candidate)
    rights = replay.rights(off)
    accuracy = compare.share_of(sum(rights), len(rights), confidence=float(policy["confidence"]))
    evidence: dict[str, Any] = {"items": len(replay.items), "accuracy": _shown(accuracy), "rule": policy["rule"]}
    evidence["slices"] = _slices(replay, rights, policy)
    says = _say_off(replay, off, rights, evidence)
    checks = [
        _answered(replay),
        at_least("accuracy", policy["min_accuracy"], accuracy, policy["rule"], says),
        *_slices_at_least("accuracy", "min_slice_accuracy", replay, rights, policy),
        *_flips(replay, policy, evidence),
        _length(replay, policy, evidence),
    ]
    if replay.baseline is not None:
        checks += _against_baseline(replay, rights, policy, evidence)
    else:
        evidence["baseline"] = None
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
    ruler = replay.ruler
    widened = f"; {ruler.same_within:.3g} apart counts as the same, by {SPREAD}" if ruler.source == SPREAD else ""
    return Judgement(verdict, f"{accuracy.value:.1%} of {accuracy.n} answers are right; {compared}{widened}.", evidence)


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


def _say_off(replay: Replay, off: Sequence[float], rights: Sequence[bool], evidence: dict[str, Any]) -> str:
    """How far off the answers are, into the evidence; what of that is to be said where they are not right."""
    ruler = replay.ruler
    evidence["compare"] = ruler.compare
    if ruler is LABELS:
        return ""
    evidence |= {"right_within": ruler.right_within, "same_within": ruler.same_within, "same_source": ruler.source}
    evidence["off_by"] = off_by(off)
    evidence["worst"] = worst_rows(replay.items, rights, off)
    return (
        f" Half of the answers are off by {evidence['off_by']['p50']:.3g} or more; {ruler.right_within:.3g} is right."
    )


def _against_baseline(
    replay: Replay, rights: Sequence[bool], policy: Mapping[str, Any], evidence: dict[str, Any]
) -> list[Check | None]:
    assert replay.baseline is not None
    confidence, ruler, name = float(policy["confidence"]), replay.ruler, replay.baseline_name
    apart = ruler.distances(replay.baseline, replay.candidate)
    same = [one <= ruler.same_within for one in apart]
    agreed = compare.share_of(sum(same), len(same), confidence=confidence)
    before = replay.rights(replay.off(replay.baseline))
    paired = compare.pair(rights, before, [True] * len(rights))
    evidence |= {
        "baseline": name,
        "agreement": _shown(agreed),
        "paired": {**asdict(paired), "drop": round(paired.drop, 6)},
        "smallest_certifiable_drop": compare.certifiable_margin(paired, confidence=confidence),
    }
    says = ""
    if ruler is not LABELS:
        evidence["apart"] = off_by(apart)
        half = evidence["apart"]["p50"]
        says = f" Half of the answers are {half:.3g} or more apart; up to {ruler.same_within:.3g} is the same."
    limit = policy["max_accuracy_drop"]
    checks = [
        at_least(f"agreement with {name}", policy["min_agreement"], agreed, policy["rule"], says),
        *_slices_at_least(f"agreement with {name}", "min_slice_agreement", replay, same, policy),
        at_most_drop("accuracy drop", limit, paired, policy, is_worse=are_worse([paired], limit, policy)[0]),
    ]
    return checks + _slices_against_baseline(replay, (rights, before, same), policy, evidence["slices"])


def _slices_against_baseline(
    replay: Replay, columns: Sequence[Sequence[bool]], policy: Mapping[str, Any], slices: dict[str, dict[str, Any]]
) -> list[Check | None]:
    """`columns`: whether this release and the baseline are right, and whether their answers are the same."""
    judged = {}
    for name, (rights, before, same) in compare.by_slice([item.slice for item in replay.items], *columns).items():
        part = compare.pair(rights, before, [True] * len(rights))
        agreement = round(sum(map(bool, same)) / len(same), 6)
        slices[name] |= {"drop": round(part.drop, 6), "lost": part.lost, "won": part.won}
        slices[name] |= {"is_judged": part.n >= policy["min_slice_items"], "agreement": agreement}
        if slices[name]["is_judged"]:
            judged[name] = part
    limit = policy["max_slice_drop"]
    return [
        at_most_drop(f"accuracy drop on slice {name}", limit, part, policy, is_worse=is_worse)
        for (name, part), is_worse in zip(judged.items(), are_worse(list(judged.values()), limit, policy), strict=True)
    ]


def _slices_at_least(
    name: str, setting: str, replay: Replay, column: Sequence[bool], policy: Mapping[str, Any]
) -> list[Check | None]:
    """The share of each slice that is large enough to be judged, held to the policy's setting."""
    if policy[setting] is None:
        return []
    confidence = float(policy["confidence"])
    shares = {
        part: compare.share_of(sum(map(bool, values)), len(values), confidence=confidence)
        for part, (values,) in compare.by_slice([item.slice for item in replay.items], column).items()
        if len(values) >= policy["min_slice_items"]
    }
    return slices_at_least(name, policy[setting], shares, policy)


def _slices(replay: Replay, rights: Sequence[bool], policy: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    cut = compare.by_slice([item.slice for item in replay.items], rights)
    return {
        name: {"items": len(values), "accuracy": round(sum(map(bool, values)) / len(values), 6)}
        for name, (values,) in cut.items()
    }


def _length(replay: Replay, policy: Mapping[str, Any], evidence: dict[str, Any]) -> Check | None:
    """How long texts are beside those of the stable release, or else beside those that are expected."""
    if COMPARISONS[replay.ruler.compare] is not Kind.TEXT:
        return None
    references, reference = replay.expected, "what is expected"
    if replay.baseline is not None:
        references, reference = [one or {} for one in replay.baseline], f"those of {replay.baseline_name}"
    limit = policy["max_length_shift"]
    evidence["length"], check = length_shift(references, replay.candidate, limit, policy, reference=reference)
    return check


#: How items are asked once more, and what is said of answers that change then.
_AGAIN: Final = {
    "alone": "when the item is asked alone",
    "full": "when the batch is full",
    "random": "in batches of random size and company",
}


def _flips(replay: Replay, policy: Mapping[str, Any], evidence: dict[str, Any]) -> list[Check | None]:
    """Batch invariance: how many answers change with the batch. Quantised models do change some."""
    asked: dict[str, Sequence[tuple[int, Answer | None]]] = {"alone": list(replay.alone.items()), **replay.batched}
    counted = {how: _flipped(replay, answers) for how, answers in asked.items() if answers}
    if "alone" not in counted:
        evidence["batch_invariance"] = None
        return []
    shares = {
        how: compare.share_of(flipped, n, confidence=float(policy["confidence"]))
        for how, (flipped, n) in counted.items()
    }
    told = {
        how: {"flipped": share.count, "asked": share.n, "low": round(share.low, 6), "high": round(share.high, 6)}
        for how, share in shares.items()
    }
    alone = told.pop("alone")
    evidence["batch_invariance"] = {"asked_alone": alone.pop("asked"), **alone, **told}
    limit = policy["max_batch_flips"]
    if limit is None:
        return []
    return [
        Check(
            "batch flips" if how == "alone" else f"batch flips, {how}",
            limit,
            share.value,
            Verdict.PASSED if share.value <= limit else Verdict.FAILED,
            f"{share.count} of {share.n} answers change {_AGAIN[how]}; {limit:.2%} are allowed.",
        )
        for how, share in shares.items()
    ]


def _flipped(replay: Replay, answers: Sequence[tuple[int, Answer | None]]) -> tuple[int, int]:
    """(items that were answered otherwise at least once, items)."""
    asked = {at for at, _ in answers}
    changed = {at for at, answer in answers if not replay.ruler.is_same(replay.candidate[at], answer)}
    return len(changed), len(asked)


def _shown(share: Share) -> dict[str, Any]:
    value = None if math.isnan(share.value) else round(share.value, 6)
    return {
        "value": value,
        "count": share.count,
        "n": share.n,
        "low": round(share.low, 6),
        "high": round(share.high, 6),
    }
