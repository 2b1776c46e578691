"""The golden gate's limits, one at a time: a share that must be reached, a drop that must not be exceeded, by either rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from validators.core import compare
from validators.core.compare import Paired, Share
from validators.core.verdict import Verdict

_MAY_BE_CHANCE = " That may be chance: add items to tell."


@dataclass(frozen=True)
class Check:
    """One limit of the policy, and how it came out."""

    name: str
    limit: float
    measured: float
    verdict: Verdict
    sentence: str


def at_least(name: str, limit: float | None, share: Share, rule: str, says: str = "") -> Check | None:
    """`says`: a further sentence for what is not as asked."""
    if limit is None:
        return None
    if rule == "certified":
        verdict = Verdict.PASSED if share.low >= limit else Verdict.FAILED if share.high < limit else Verdict.UNDECIDED
    else:
        verdict = Verdict.PASSED if share.value >= limit else Verdict.FAILED
    return Check(name, limit, share.value, verdict, _of_share(name, limit, share) + says)


def slices_at_least(
    name: str, limit: float, shares: Mapping[str, Share], policy: Mapping[str, Any]
) -> list[Check | None]:
    """The share on each slice; one that is below its limit fails when that is more than chance, all slices taken together."""
    p_values = [compare.below_p(share.count, share.n, limit) for share in shares.values()]
    below = compare.holm(p_values, alpha=1 - float(policy["confidence"]))
    checks: list[Check | None] = []
    for (part, share), is_below in zip(shares.items(), below, strict=True):
        reached = share.low if policy["rule"] == "certified" else share.value
        verdict = Verdict.PASSED if reached >= limit else Verdict.FAILED if is_below else Verdict.UNDECIDED
        doubt = _MAY_BE_CHANCE if verdict is Verdict.UNDECIDED else ""
        whole = f"{name} on slice {part}"
        checks.append(Check(whole, limit, share.value, verdict, _of_share(whole, limit, share) + doubt))
    return checks


def at_most_drop(
    name: str, limit: float | None, paired: Paired, policy: Mapping[str, Any], *, is_worse: bool
) -> Check | None:
    """`is_worse`: see `are_worse`."""
    if limit is None:
        return None
    if policy["rule"] == "certified":
        passed = compare.is_not_worse(paired, limit, confidence=float(policy["confidence"]))
    else:
        passed = paired.drop <= limit + 1e-12
    verdict = Verdict.PASSED if passed else Verdict.FAILED if is_worse else Verdict.UNDECIDED
    doubt = _MAY_BE_CHANCE if verdict is Verdict.UNDECIDED else ""
    return Check(
        name,
        limit,
        paired.drop,
        verdict,
        f"The {name} is {paired.drop * 100:.1f} points ({paired.lost} answers lost, {paired.won} won, of {paired.n}); "
        f"{limit * 100:.1f} are allowed.{doubt}",
    )


def are_worse(parts: Sequence[Paired], limit: float | None, policy: Mapping[str, Any]) -> list[bool]:
    """Which drops are shown to exceed the limit (`certified`), or to be more than chance (`measured`), all of them taken together.

    One slice in twenty would fail by chance alone at a confidence of .95; so the confidence holds for all slices at once.
    """
    margin = (limit or 0.0) if policy["rule"] == "certified" else 0.0
    return compare.holm([compare.worse_p(one, margin) for one in parts], alpha=1 - float(policy["confidence"]))


def _of_share(name: str, limit: float, share: Share) -> str:
    return (
        f"The {name} is {share.value:.2%} (interval {share.low:.2%} to {share.high:.2%}) of {share.n} items; "
        f"{limit:.2%} is asked."
    )
