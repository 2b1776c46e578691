"""Whether two releases answered one request alike, what that counts for, and how often one may ask.

A request is answered by stable twice and by the candidate once. Stable against itself is the noise: what differs there
differs by itself (batches, hardware, randomness), so the candidate is held against that and not against perfection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from validators.core.answers import answers_in, in_words
from validators.core.golden_set import Label

Arrays = Mapping[str, npt.NDArray[Any]]
_LONGEST_TEXT = 40


@dataclass(frozen=True)
class Closeness:
    """Two numbers are alike when |got - expected| ≤ absolute + relative · |expected|."""

    relative: float
    absolute: float


#: For whole networks, by the protocol's data type. Starting values, a few hundred times what PyTorch allows one operation
#: (1.3e-6 for FP32): another batch size, kernel or GPU stays within them. What a model's own noise exceeds, it exceeds in
#: stable's two answers too, and is no difference between the releases.
CLOSENESS = {
    "FP64": Closeness(1e-6, 1e-8),
    "FP32": Closeness(1e-3, 1e-4),
    "FP16": Closeness(1e-2, 1e-3),
    "BF16": Closeness(3e-2, 1e-2),
}
_OF_ARRAY = {"float64": "FP64", "float32": "FP32", "float16": "FP16"}


@dataclass(frozen=True)
class Rule:
    """How answers are compared.

    Without `answer`, every value of every output: numbers within `CLOSENESS`, whole numbers and text exactly. With it, that
    output by the answer that it stands for (the class with the highest score, the text, the number), as the golden gate
    reads it; the others only by name, data type, number of axes, and NaN. `data_types` are the declared ones, by output.
    """

    answer: str = ""
    labels: tuple[str, ...] = ()
    has_batch_axis: bool = True
    data_types: Mapping[str, str] = field(default_factory=dict)

    def closeness(self, name: str, array: npt.NDArray[Any]) -> Closeness:
        """By the declared type, as BF16 arrives widened to 32 bits; else by the array's own."""
        own = _OF_ARRAY.get(array.dtype.name, "FP32")
        return CLOSENESS.get(self.data_types.get(name, own), CLOSENESS[own])


@dataclass(frozen=True)
class Difference:
    """The first thing in which two answers differ. `kind` is stable for code:

    missing, extra, data_type, shape, not_finite, value, answer, failed.
    """

    kind: str
    output: str
    words: str


def difference(expected: Arrays, got: Arrays, rule: Rule) -> Difference | None:
    """Difference of `got` from `expected`; None if they are alike."""
    for name in sorted(expected.keys() | got.keys()):
        if name not in got:
            return Difference("missing", name, f"output {name} is missing")
        if name not in expected:
            return Difference("extra", name, f"there is an output {name} that stable does not have")
        found = _of_output(name, expected[name], got[name], rule)
        if found:
            return found
    return None


def _of_output(name: str, expected: npt.NDArray[Any], got: npt.NDArray[Any], rule: Rule) -> Difference | None:
    if _kind(expected) != _kind(got):
        return Difference("data_type", name, f"output {name} is {_kind(got)}, expected {_kind(expected)}")
    by_value = not rule.answer or name == rule.answer
    if got.shape != expected.shape if by_value else got.ndim != expected.ndim:
        return Difference(
            "shape", name, f"output {name} has the shape {list(got.shape)}, expected {list(expected.shape)}"
        )
    lost = _not_finite(got) - _not_finite(expected)
    if lost > 0:
        return Difference("not_finite", name, f"output {name} holds {lost} NaN or infinite of {got.size} values")
    if not by_value:
        return None
    if rule.answer:
        try:
            return _of_answers(name, expected, got, rule)
        except ValueError:
            pass  # it holds no answer for each item: its values are compared
    return _of_values(name, expected, got, rule)


def _of_answers(name: str, expected: npt.NDArray[Any], got: npt.NDArray[Any], rule: Rule) -> Difference | None:
    pairs = zip(_answers(expected, rule), _answers(got, rule), strict=True)
    wrong = [(row, want, have) for row, (want, have) in enumerate(pairs) if want != have]
    if not wrong:
        return None
    row, want, have = wrong[0]
    more = f" ({len(wrong)} of {len(expected)} rows differ)" if len(wrong) > 1 else ""
    return Difference("answer", name, f"the answer of row {row} is {_shown(have)}, expected {_shown(want)}{more}")


def _answers(array: npt.NDArray[Any], rule: Rule) -> list[Label | None]:
    array = array if rule.has_batch_axis else array[None]
    count = array.shape[0] if array.ndim else 0
    return [in_words(answer, rule.labels or None) for answer in answers_in(array, count)]


def _of_values(name: str, expected: npt.NDArray[Any], got: npt.NDArray[Any], rule: Rule) -> Difference | None:
    if expected.dtype.kind == "f":
        close = rule.closeness(name, expected)
        with np.errstate(invalid="ignore", over="ignore"):
            want, have = expected.astype(np.float64), got.astype(np.float64)
            excess = np.abs(have - want) - (close.absolute + close.relative * np.abs(want))
            alike = (excess <= 0) | (want == have) | (np.isnan(want) & np.isnan(have))
        worst = np.where(alike, -np.inf, np.nan_to_num(excess, nan=np.inf))
    else:
        alike = np.asarray(_plain(expected) == _plain(got), dtype=bool)
        worst = np.where(alike, 0.0, 1.0)
    wrong = int(alike.size - np.count_nonzero(alike))
    if not wrong:
        return None
    at = tuple(int(i) for i in np.unravel_index(int(worst.argmax()), worst.shape))
    where = f"{name}[{', '.join(map(str, at))}]" if at else name
    words = f"{where} is {_shown(got[at])}, expected {_shown(expected[at])} ({wrong} of {alike.size} values differ)"
    return Difference("value", name, words)


def _kind(array: npt.NDArray[Any]) -> str:
    """The protocol's word for text, numpy's for the rest: text comes in several numpy forms."""
    return "BYTES" if array.dtype.kind in "OSU" else array.dtype.name


def _not_finite(array: npt.NDArray[Any]) -> int:
    return int(array.size - np.count_nonzero(np.isfinite(array))) if array.dtype.kind == "f" else 0


def _plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype.kind not in "OSU":
        return array
    texts = np.empty(array.size, dtype=object)
    texts[:] = [value if isinstance(value, bytes) else str(value).encode() for value in array.ravel()]
    return texts.reshape(array.shape)


def _shown(value: Any) -> str:
    if isinstance(value, (bytes, str)):
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return repr(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…")
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


@dataclass(frozen=True)
class ComparisonOutcome:
    """What one comparison counts for: one attempt of each arm that was asked, bad or not, with an example of the candidate's."""

    candidate_bad: bool
    stable_bad: bool | None  # None: there is no stable release
    found: Difference | None = None


def judged(primary: Arrays, candidate: Arrays | str, secondary: Arrays, rule: Rule) -> ComparisonOutcome:
    """The outcome of one request that stable answered twice; `candidate` is its answer, or why it has none."""
    noise = difference(primary, secondary, rule)
    if isinstance(candidate, str):
        return ComparisonOutcome(
            True, noise is not None, Difference("failed", "", f"it fails where stable answers: {candidate}")
        )
    found = difference(primary, candidate, rule)
    return ComparisonOutcome(found is not None, noise is not None, found)


@dataclass
class Tally:
    """Cumulative counts of one rollout, both sources together."""

    candidate_attempts: int = 0
    candidate_bad: int = 0
    stable_attempts: int = 0
    stable_bad: int = 0

    def add(self, outcome: ComparisonOutcome) -> None:
        self.candidate_attempts += 1
        self.candidate_bad += outcome.candidate_bad
        if outcome.stable_bad is not None:
            self.stable_attempts += 1
            self.stable_bad += outcome.stable_bad


@dataclass
class Allowance:
    """At most `per_s` a second in the long run, and a quarter of a second's worth at once. Time is monotonic seconds."""

    per_s: float
    _left: float | None = None
    _at: float = 0.0

    def take(self, now: float) -> bool:
        """Whether one more is allowed now; if so, it is taken."""
        most = max(1.0, self.per_s / 4)
        left = most if self._left is None else min(most, self._left + max(0.0, now - self._at) * self.per_s)
        self._at = now
        self._left = left - 1 if left >= 1 else left
        return left >= 1
