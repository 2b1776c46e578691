"""The golden gate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from registry.core.attestations import Measured
from registry.core.schema import (
    INVALID,
    Integer,
    Json,
    ListOf,
    Number,
    Problem,
    Record,
    TensorName,
    Text,
    digest,
    may,
)
from validators.core import json_shape
from validators.core.certify import Caught, caught, judged_slices
from validators.core.gates.fields import CONFIDENCE, FRACTION, SECONDS, OrNone
from validators.core.gates.gate import (
    OF_ANSWERS,
    USUAL_CONFIDENCE,
    Demand,
    Evidence,
    FormField,
    Gate,
    Metric,
    Plan,
    Section,
    sentence,
)
from validators.core.ruler import COMPARISONS, ONLY_FOR, Kind

#: Slices of a golden set that are explained, the smallest judged ones first, because they certify least.
MOST_SLICES: Final = 5
_DISTANCE = Number(0, 1_000_000)
#: Limits for answers that are no labels, if the policy states none.
_OF_ROWS = {"min_accuracy": 0.95, "min_slice_accuracy": 0.9, "min_slice_agreement": 0.9, "max_batch_flips": 0.05}


class _Schema:
    """A JSON Schema of the words that `validators.core.json_shape` knows."""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        read = Json().read(value, at, problems)
        fault = None if read is INVALID else json_shape.fault_of_schema(read, "it")
        if fault:
            problems.append(Problem(at, f"{fault}.", "Write a JSON Schema of these words alone."))
        return INVALID if fault else read


def _complete(own: Section, stated: Section, read: Mapping[str, Any], objectives: Mapping[str, Any]) -> Section:
    """The section with the limits of what it compares; a stated null demands nothing."""
    if own["compare"] == "label":
        return own
    return {**own, **{name: limit for name, limit in _OF_ROWS.items() if name not in stated}}


def _contradictions(read: Mapping[str, Any]) -> Iterator[Problem]:
    own = read.get("golden") or {}
    if "golden" in (read.get("gates") or ()) and own.get("set", "") is None:
        fix = "Upload one to the model's golden-sets and write its digest here, or take golden out of gates."
        yield Problem("golden.set", "the golden gate has no set to replay.", fix)
    compare = str(own.get("compare"))
    for name, kinds in ONLY_FOR.items():
        if own.get(name) is not None and COMPARISONS.get(compare, kinds[0]) not in kinds:
            fix = f"Leave it out, or compare {' or '.join(kinds)}: {_comparisons_of(kinds)}."
            yield Problem(f"golden.{name}", f"it means nothing for golden.compare {compare}.", fix)


def _comparisons_of(kinds: Sequence[Kind]) -> str:
    return ", ".join(name for name, kind in COMPARISONS.items() if kind in kinds)


def _explain(own: Section, plan: Plan) -> Iterator[Demand]:
    words = {
        "min_accuracy": "right answers at least",
        "min_agreement": "answers as stable's at least",
        "max_accuracy_drop": "accuracy drops at most by",
    }
    asked = [f"{text} {own[name] * 100:g} %" for name, text in words.items() if own[name] is not None]
    demands = f"Of {plan.items} rows: {'; '.join(asked) or 'nothing is asked of all rows'}."
    yield Demand("golden", "golden.set", demands, _lost(caught(plan.items, own)))
    judged = judged_slices(plan.slices, own)
    sizes = sorted((count, name) for name, count in plan.slices.items() if count >= own["min_slice_items"])
    for count, name in sizes[:MOST_SLICES]:
        demands = f"Of the {count} rows of slice {name}: limits of slices, one of {judged} that are judged."
        yield Demand("golden", "golden.max_slice_drop", demands, _lost(caught(count, own, slices=judged)))
    if judged < len(plan.slices):
        few = f"{len(plan.slices) - judged} slices have fewer than {own['min_slice_items']} rows."
        yield Demand("golden", "golden.min_slice_items", few, "Nothing about them by themselves.")


def _lost(found: Caught) -> str:
    if found.against_stable is None:
        return "Nothing: so few rows, or so little asked, that no loss of rows fails it."
    says = f"a release that loses {found.against_stable * 100:.3g} % of stable's rows fails in nine runs of ten"
    alone = found.without_stable
    if alone is None:
        return sentence(f"{says}; without a stable release nothing fails it")
    return sentence(f"{says}; without a stable release, one that loses {alone * 100:.3g} %")


def _metrics(evidence: Evidence) -> Iterator[Metric]:
    under = (
        ("golden set", evidence.get("golden_set")),
        ("output", evidence.get("output")),
        ("comparison", evidence.get("compare", "label")),
        ("limit", evidence.get("right_within")),
    )
    accuracy, flips = evidence.get("accuracy") or {}, evidence.get("batch_invariance") or {}
    if isinstance(accuracy.get("value"), int | float):
        interval = accuracy.get("low"), accuracy.get("high"), accuracy.get("n")
        yield Metric("golden", "accuracy", "frac", True, accuracy["value"], *interval, under)
    if flips.get("asked_alone"):
        share = flips["flipped"] / flips["asked_alone"]
        yield Metric(
            "golden", "batch flips", "frac", False, share, flips["low"], flips["high"], flips["asked_alone"], under
        )


def _thresholds(own: Section) -> dict[str, float | None]:
    return {
        "accuracy": own.get("min_accuracy"),
        "agreement": own.get("min_agreement"),
        "accuracy drop": own.get("max_accuracy_drop"),
        "batch flips": own.get("max_batch_flips"),
    }


def _attests(evidence: Evidence, own: Section) -> Iterator[Measured]:
    agreement, paired, limits = evidence.get("agreement"), evidence.get("paired"), _thresholds(own)
    if agreement and agreement.get("value") is not None:
        name = f"agreement with {evidence.get('baseline')}"
        interval = agreement["n"], agreement["low"], agreement["high"], _confidence(own)
        yield Measured(name, "frac", "higher", agreement["value"], limits["agreement"], *interval)
    if paired:
        yield Measured("accuracy drop", "frac", "lower", paired["drop"], limits["accuracy drop"], paired["n"])


def _confidence(own: Section) -> float:
    confidence: float = own.get("confidence", USUAL_CONFIDENCE)
    return confidence


GOLDEN: Final = Gate(
    name="golden",
    section=Record(
        {
            "set": may(digest("a golden set's digest"), None),
            "output": may(TensorName(), None),
            "compare": may(Text(one_of=tuple(COMPARISONS), says="a comparison"), "label"),
            "right_within": may(OrNone(_DISTANCE), None),
            "same_within": may(OrNone(_DISTANCE), None),
            "schema": may(OrNone(_Schema()), None),
            "labels": may(ListOf(Text(200), least=1, most=10_000), None),
            "min_accuracy": may(OrNone(FRACTION), None),
            "min_slice_accuracy": may(OrNone(FRACTION), None),
            "min_agreement": may(OrNone(FRACTION), 0.95),
            "min_slice_agreement": may(OrNone(FRACTION), None),
            "max_accuracy_drop": may(OrNone(FRACTION), 0.02),
            "max_slice_drop": may(OrNone(FRACTION), 0.05),
            "min_slice_items": may(Integer(1, 1_000_000, unit="items"), 20),
            "max_batch_flips": may(OrNone(FRACTION), None),
            "max_length_shift": may(OrNone(Number(0, 100)), None),
            "rule": may(Text(one_of=("measured", "certified"), says="a rule"), "measured"),
            "confidence": may(CONFIDENCE, 0.95),
            "batch_size": may(Integer(1, 65_536, unit="items"), 16),
            "alone_items": may(Integer(0, 100_000, unit="items"), 64),
            "timeout_s": may(SECONDS, 60),
        }
    ),
    explain=_explain,
    complete=_complete,
    contradictions=_contradictions,
    replays_set=True,
    is_compared=True,
    depends=OF_ANSWERS | {"cpu_model"},
    metric_names=("accuracy", "batch flips"),
    metrics=_metrics,
    thresholds=_thresholds,
    confidence=_confidence,
    attests=_attests,
    figures=("slices",),
    form=(
        FormField("set", "Golden set", "its digest", "text"),
        FormField("compare", "Answers are compared by", "label, cosine, largest_relative_error, …", "text"),
        FormField("right_within", "Right within", "of what is expected, or none"),
        FormField("min_accuracy", "Accuracy at least", "share from 0 to 1"),
        FormField("min_agreement", "Agreement at least", "share, or none"),
        FormField("max_accuracy_drop", "Accuracy may drop by", "share, or none"),
        FormField("max_slice_drop", "In a slice by", "share, or none"),
    ),
)
