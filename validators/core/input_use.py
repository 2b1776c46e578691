"""Whether answers come from the input: requests that differ are to be answered differently, and texts as they were sent.

A server that hands a text to its graph in another form than the caller's, or a graph that was exported with a constant in
the place of its input, answers with status 200, the right shape and finite numbers. Two things show it: all answers are
the same to the byte, or an answer holds Python's spelling of the bytes that were sent (`b'text'`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.servers.core.made_up import NUMPY_TYPES
from validators.core.contract import Mismatch, Tensor
from validators.core.inputs import Arrays
from validators.core.verdict import Judgement, Verdict

#: Requests that differ from the first one, at most; the first different answer ends the search.
MOST_TRIED = 8
#: Inputs that are changed one by one, at most.
MOST_ALONE = 16
#: Texts that differ in language, length and mood, so that a classifier's scores differ.
TEXTS = (
    "plain", "A good film, I love it!", "A bad film. Terrible, never again.", "日本語のテキスト",
    "SELECT 1; -- 42", "a", "The meeting moved to Thursday at 9.", "¿Dónde está la biblioteca?",
)  # fmt: skip
#: Random numbers of this scale, or (`all`) this number everywhere. Trees split at the scale of their features, which no
#: release declares here, and on one side of all made-up numbers they answer all alike.
NUMBERS = (
    ("random", 1.0), ("all", 1e6), ("all", -1e6), ("random", 1e3), ("all", 0.0), ("all", 1.0), ("random", 1e-2), ("random", 1e5),
)  # fmt: skip
_LARGEST_HALF = 6e4


UNWELL = Mismatch(
    "unwell",
    "",
    "After a request with other values of the declared inputs the server did not answer an ordinary request as before.",
)


@dataclass(frozen=True)
class InputUse:
    """What requests that differ brought. `state`: `used` · `same` (all answers are equal to the byte) · `not_deterministic` (one
    request was answered in two ways) · `not_tried`. `without_effect`: inputs that changed no answer while the others stayed.
    """

    state: str
    tried: int = 0
    without_effect: tuple[str, ...] = ()
    mismatches: tuple[Mismatch, ...] = field(default=())


def variations(
    tensors: Sequence[Tensor], example: Arrays, values: Mapping[str, Any], *, of: str = ""
) -> Iterator[Arrays]:
    """The example with other values of the same shapes, for all inputs, or only for the input `of`.

    `values` are the envelope's `input_values`: within them numbers are drawn. Integers of which it declares none become 0 and
    1, since they may count places in a table.
    """
    random = np.random.default_rng(17)
    for at in range(MOST_TRIED):
        changed = {
            tensor.name: _other(random, tensor, example[tensor.name], values.get(tensor.name), at)
            for tensor in tensors
            if of in ("", tensor.name)
        }
        if any(not same(changed[name], example[name]) for name in changed):
            yield {**example, **changed}


def same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Whether two arrays are equal to the byte, type and shape included."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype == object:
        return bool(one.tolist() == other.tolist())
    return one.tobytes() == other.tobytes()


def same_answers(one: Mapping[str, npt.NDArray[Any]] | None, other: Mapping[str, npt.NDArray[Any]] | None) -> bool:
    """Whether two answers are equal. None is a refusal: a model that refuses one of two inputs looked at them."""
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)


def spelt_out(sent: Arrays, answer: Mapping[str, npt.NDArray[Any]]) -> list[Mismatch]:
    """Outputs that hold Python's spelling of a text that was sent, which is not in the text itself."""
    texts = [value for array in sent.values() if array.dtype == object for value in array.ravel()]
    spelt = [repr(text) for text in texts if isinstance(text, bytes) and repr(text).encode() not in text]
    found = []
    for name, array in answer.items():
        words = [_text(value) for value in array.ravel()] if array.dtype.kind in "OSU" else []
        spelling = next((one for one in spelt if any(one in word for word in words)), "")
        if spelling:
            message = (
                f"Output {name} holds {spelling[:60]}, which is Python's spelling of the text that was sent: the model got no "
                "text. Decode it as UTF-8 before the model gets it."
            )
            found.append(Mismatch("spelt_out", name, message))
    return found


def judge_input_use(found: Judgement, use: InputUse, outputs: Sequence[Tensor]) -> Judgement:
    """A contract gate's passed judgement with this."""
    evidence = {**found.evidence, "input_use": {"state": use.state, "requests": use.tried}}
    if use.without_effect:
        evidence["input_use"]["without_effect"] = list(use.without_effect)
    if use.mismatches:
        evidence["mismatches"] = [asdict(one) for one in use.mismatches]
        return Judgement(Verdict.FAILED, use.mismatches[0].message, evidence)
    if use.state != "same":
        return Judgement(found.verdict, found.reason, evidence)
    state = f"All {use.tried} requests, each with another input, got the same answer to the byte."
    has_numbers = any(NUMPY_TYPES.get(one.data_type, "object").startswith("float") for one in outputs)
    if not has_numbers:
        return Judgement(
            found.verdict, f"{found.reason} {state} Whether the model uses its input is not shown.", evidence
        )
    advice = (
        "The model seems to ignore its input. Give golden items or serving.warmup with inputs whose answers differ; if the "
        "answer is constant on purpose, set contract.undecided to allow."
    )
    return Judgement(Verdict.UNDECIDED, f"{state} {advice}", evidence)


def _other(
    random: np.random.Generator, tensor: Tensor, value: npt.NDArray[Any], within: Sequence[float] | None, at: int
) -> npt.NDArray[Any]:
    kind = NUMPY_TYPES.get(tensor.data_type, "object")
    if kind == "object":
        return np.full(value.shape, TEXTS[at % len(TEXTS)].encode(), dtype=object)
    if kind == "bool":
        return np.full(value.shape, at % 2 == 0) if at < 2 else random.integers(0, 2, value.shape).astype(bool)
    if kind.startswith("float"):
        if within:
            return np.asarray(random.uniform(within[0], within[1], value.shape)).astype(kind)
        way, size = NUMBERS[at % len(NUMBERS)]
        drawn = np.full(value.shape, size) if way == "all" else random.normal(0.0, size, value.shape)
        return np.clip(drawn, -_LARGEST_HALF, _LARGEST_HALF).astype(kind) if kind == "float16" else drawn.astype(kind)
    low, high = (int(within[0]), int(within[1])) if within else (0, 1)
    if at < 2:
        return np.full(value.shape, (high, low)[at], dtype=kind)
    return np.asarray(random.integers(low, high, value.shape, dtype=np.dtype(kind).type, endpoint=True))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
