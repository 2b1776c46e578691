"""How much longer or shorter texts are than others: the median ratio of their lengths, with an exact interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from validators.core import beta
from validators.core.golden_checks import Check
from validators.core.texts import length_ratio
from validators.core.verdict import Verdict


@dataclass(frozen=True)
class Median:
    """The median of `n` values, with a two-sided interval that rests on their order alone."""

    value: float
    low: float
    high: float
    n: int


def median_of(values: Sequence[float], *, confidence: float) -> Median:
    """`confidence` is at least a half. With too few values for it the interval is all that was seen. Raises ValueError for none.

    Source: the sign test inverted; how many values lie below the median is binomial (n, 1/2).
    """
    ordered, n = sorted(values), len(values)
    if not n:
        raise ValueError("there is no median of nothing")
    out = 0
    while out + 1 < n and 2 * beta.incomplete(0.5, n - out - 1, out + 2) <= 1 - confidence:
        out += 1
    return Median(median(ordered), ordered[out], ordered[n - 1 - out], n)


def length_shift(
    references: Sequence[Mapping[str, str]],
    answers: Sequence[Mapping[str, str] | None],
    limit: float | None,
    policy: Mapping[str, Any],
    *,
    reference: str,
) -> tuple[dict[str, Any] | None, Check | None]:
    """(the median ratio as evidence, the check on it). `limit` is the share by which texts may get longer or shorter.

    Beyond it the check fails when the whole interval is, and is undecided otherwise. (None, None) where nothing was answered.
    """
    ratios = [
        length_ratio("".join(one.values()), "".join(other.values()))
        for one, other in zip(references, answers, strict=True)
        if other is not None
    ]
    if not ratios:
        return None, None
    found = median_of(ratios, confidence=float(policy["confidence"]))
    evidence = {name: round(value, 6) for name, value in asdict(found).items()} | {"reference": reference}
    if limit is None:
        return evidence, None
    near, far = max(0.0, found.low - 1, 1 - found.high), max(abs(found.low - 1), abs(found.high - 1))  # of the interval
    reached = far if policy["rule"] == "certified" else abs(found.value - 1)
    verdict = Verdict.PASSED if reached <= limit else Verdict.FAILED if near > limit else Verdict.UNDECIDED
    sentence = (
        f"Half of the texts are {found.value:.2f} times as long as {reference} or longer "
        f"(interval {found.low:.2f} to {found.high:.2f}); {1 - limit:.2f} to {1 + limit:.2f} is allowed."
    )
    return evidence, Check("length shift", limit, abs(found.value - 1), verdict, sentence)
