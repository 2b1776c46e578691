"""How far apart two answers are, and how far they may be: what `golden.compare` of a gate policy names.

Two limits. An answer is *right* within `right_within` of what the golden set expects; two answers, of two releases or of two
batches, are *the same* within `same_within`, which is rounding and no more. A set of true values may be missed by a tenth and
still be answered by two releases the same to a thousandth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

import numpy as np

from validators.core import json_shape
from validators.core.boxes import boxes_distance
from validators.core.distances import cosine_distance, largest_relative_error, mean_relative_error, rms
from validators.core.texts import normalised, token_distance

#: A label, or the outputs of one row by name: arrays of 64-bit floats, or texts.
Answer = Any
Distance = Callable[[Answer, Answer], float]


class Kind(StrEnum):
    """What the items of a golden set expect."""

    LABELS = "labels"
    TENSORS = "tensors"
    TEXT = "text"


#: What `golden.compare` may be, and the kind of set that it is for.
COMPARISONS: Final[dict[str, Kind]] = {
    "label": Kind.LABELS,
    "cosine": Kind.TENSORS,
    "largest_relative_error": Kind.TENSORS,
    "mean_relative_error": Kind.TENSORS,
    "boxes": Kind.TENSORS,
    "exact_text": Kind.TEXT,
    "normalised_text": Kind.TEXT,
    "json_text": Kind.TEXT,
    "text_tokens": Kind.TEXT,
}
#: The comparison of a set of each kind whose policy names none that fits.
USUAL: Final = {Kind.LABELS: "label", Kind.TENSORS: "largest_relative_error", Kind.TEXT: "normalised_text"}
#: Settings of a golden section that belong to some kinds of sets alone.
ONLY_FOR: Final[dict[str, tuple[Kind, ...]]] = {
    "right_within": (Kind.TENSORS, Kind.TEXT),
    "same_within": (Kind.TENSORS, Kind.TEXT),
    "schema": (Kind.TEXT,),
    "max_length_shift": (Kind.TEXT,),
    "labels": (Kind.LABELS,),
}
#: Apart by so much two answers are the same, by the output's data type: (relative error, cosine distance). Starting values for
#: whole networks, some thousand times what one operation may be off by: another kernel, batch or GPU stays within them.
_ROUNDING: Final = {"FP64": (5e-3, 1e-4), "FP32": (5e-3, 1e-4), "FP16": (1e-2, 1e-3), "BF16": (3e-2, 2e-3)}
#: Boxes whose edges are rounded, and a token in ten.
_BOXES, _TOKENS = 0.1, 0.1
#: Two answers of one release differ by no more than this many times what its answers were seen to.
NOISE_FACTOR: Final = 3.0
#: A stable release that scatters widely widens what is the same up to so many times rounding, and is no standard beyond that.
MOST_WIDENED: Final = 10.0
#: Where `same_within` is from.
STATED, ROUNDING, SPREAD = "the gate policy", "rounding", "stable's own spread"


@dataclass(frozen=True)
class Ruler:
    """One comparison with its limits. `source` says where `same_within` is from."""

    compare: str
    distance: Distance
    right_within: float = 0.0
    same_within: float = 0.0
    source: str = ""

    def is_same(self, one: Answer | None, other: Answer | None) -> bool:
        """Whether the two are the same answer; no answer twice is."""
        if one is None or other is None:
            return one is other
        return self.distance(one, other) <= self.same_within

    def distances(self, expected: Sequence[Answer | None], got: Sequence[Answer | None]) -> list[float]:
        """How far off each answer is, by position; inf where there is none."""
        pairs = zip(expected, got, strict=True)
        return [math.inf if a is None or b is None else self.distance(a, b) for a, b in pairs]


_OF_SIZE: Final[dict[str, Callable[..., float]]] = {
    "largest_relative_error": largest_relative_error,
    "mean_relative_error": mean_relative_error,
}


def _unequal(expected: Answer, got: Answer) -> float:
    return float(expected != got)


#: Labels: the same or not.
LABELS: Final = Ruler("label", _unequal)


def ruler_of(
    policy: Mapping[str, Any],
    expected: Iterable[Mapping[str, Any]],
    data_types: Mapping[str, str],
    *,
    noise: float = 0.0,
) -> Ruler:
    """The ruler of a golden section for what a set expects. `data_types` are those of the judged outputs, by name.

    `noise` is how far stable's answers were seen apart from themselves: what is the same is at least three times that, but never
    more than ten times what is rounding.
    """
    compare = str(policy["compare"])
    if compare == "label":
        return LABELS
    same, source = rounding_of(compare, data_types.values()), ROUNDING
    if policy["same_within"] is not None:
        same, source = float(policy["same_within"]), STATED
    elif same < NOISE_FACTOR * noise and same > 0:
        same, source = min(NOISE_FACTOR * noise, MOST_WIDENED * same), SPREAD
    right = same if policy["right_within"] is None else float(policy["right_within"])
    return Ruler(compare, _distance(compare, list(expected), policy["schema"]), right, same, source)


def rounding_of(compare: str, data_types: Iterable[str]) -> float:
    """What two answers of these data types may be apart and still be the same, where nothing else is stated: the loosest of them."""
    fixed = {"boxes": _BOXES, "text_tokens": _TOKENS}
    if compare in fixed or COMPARISONS[compare] is not Kind.TENSORS:
        return fixed.get(compare, 0.0)
    return max((_ROUNDING.get(one, (0.0, 0.0))[compare == "cosine"] for one in data_types), default=0.0)


def _distance(compare: str, expected: list[Mapping[str, Any]], schema: Mapping[str, Any] | None) -> Distance:
    names = list(expected[0]) if expected else []
    if compare == "boxes":
        return lambda one, other: boxes_distance([one[name] for name in names], [other[name] for name in names])
    if compare in _OF_SIZE:
        usual = {name: rms(np.array([rms(row[name]) for row in expected])) for name in names}
        return partial(_worst, {name: partial(_OF_SIZE[compare], usual=size) for name, size in usual.items()})
    measures: dict[str, Distance] = {
        "cosine": cosine_distance,
        "exact_text": _unequal,
        "normalised_text": lambda one, other: _unequal(normalised(one), normalised(other)),
        "text_tokens": token_distance,
        "json_text": partial(_json_distance, schema),
    }
    return partial(_worst, dict.fromkeys(names, measures[compare]))


def _worst(
    measures: Mapping[str, Callable[[Any, Any], float]], one: Mapping[str, Any], other: Mapping[str, Any]
) -> float:
    """The distance of the output that is farthest off."""
    return max((measure(one[name], other[name]) for name, measure in measures.items()), default=math.inf)


def _json_distance(schema: Mapping[str, Any] | None, expected: str, got: str) -> float:
    """0 for JSON that the schema fits, or without one for JSON like the expected; what is expected need not be JSON itself."""
    is_json, value = json_shape.read(got)
    if schema is not None:
        return float(not (is_json and json_shape.fits(value, schema)))
    was_json, wanted = json_shape.read(expected)
    if not was_json:
        return _unequal(expected, got)
    return float(not (is_json and json_shape.fits(value, json_shape.schema_like(wanted))))
