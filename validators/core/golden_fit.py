"""Whether a golden set, a gate policy's golden section and a release belong together, and what to change where they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from validators.core.answers import choose_output
from validators.core.contract import Tensor
from validators.core.golden_set import GoldenItem, kind_of, parse_golden_set
from validators.core.rows import expected_rows, judged_outputs
from validators.core.ruler import COMPARISONS, ONLY_FOR, USUAL, Kind


@dataclass(frozen=True)
class Misfit:
    """`field` is the setting to change."""

    field: str
    message: str
    fix: str


def fitted(stated: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """A golden section as somebody stated it, for sets of this kind: with the usual comparison and without what is for others,
    where it compares another kind."""
    if COMPARISONS.get(str(stated.get("compare", "label"))) is kind:
        return dict(stated)
    kept = {name: value for name, value in stated.items() if name not in ONLY_FOR and name != "compare"}
    return kept if kind is Kind.LABELS else {**kept, "compare": USUAL[kind]}


def misfit_of_lines(golden: Mapping[str, Any], data: bytes, outputs: Sequence[Tensor]) -> Misfit | None:
    """The same of a set's JSON lines."""
    return misfit(golden, parse_golden_set(data), outputs)


def misfit(golden: Mapping[str, Any], items: Sequence[GoldenItem], outputs: Sequence[Tensor]) -> Misfit | None:
    """Why the golden gate could not judge a release with these outputs by this section and set; None where it can."""
    kind, compare = kind_of(items), golden["compare"]
    if kind is not COMPARISONS[compare]:
        fitting = ", ".join(name for name, wanted in COMPARISONS.items() if wanted is kind)
        message = f"golden.compare is {compare}, and the golden set is of the kind {kind}"
        return Misfit("golden.compare", message, f"Write one of {fitting}, or name another set.")
    try:
        if kind is Kind.LABELS:
            choose_output(outputs, golden["output"])
        else:
            expected_rows(items, judged_outputs(items, outputs, golden["output"]))
    except ValueError as error:
        if kind is Kind.LABELS or golden["output"]:
            return Misfit("golden.output", str(error), "Name one of the release's outputs.")
        return Misfit(
            "golden.set", str(error), "Name a set that expects the release's outputs, in their types and shapes."
        )
    return None
