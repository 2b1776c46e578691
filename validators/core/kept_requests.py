"""Requests that a model's policy allows to keep: which of those that were mirrored are kept, and the golden set they make.

What is kept is a sample of the distinct inputs: each has a rank that follows from a secret and from the input alone, and those
with the lowest stay. So no caller can choose what is kept, it does not matter in which order requests come or how often the
prober starts anew, and a request that is asked a thousand times is kept once.
Source: bottom-k sampling, Cohen and Kaplan, Summarizing data using bottom-k sketches (PODC 2007).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ledger.core.canonical import canonical_bytes, sha256_of
from registry.core.schema import INVALID, Json, Problem
from validators.core.answers import answers_in, choose_output, in_words
from validators.core.contract import Tensor
from validators.core.inputs import item_arrays
from validators.core.policy import KEPT_REQUESTS

Arrays = Mapping[str, npt.NDArray[Any]]
#: Ranks fit into a signed column of 64 bits.
_RANK_BYTES: Final = 7


@dataclass(frozen=True)
class KeepRule:
    """What may be kept of a model: `most` requests of at most `max_bytes` each, none for longer than `max_age_days`."""

    most: int
    max_age_days: float
    max_bytes: int


@dataclass(frozen=True)
class Sample:
    """One item of a mirrored request: its inputs, and what the stable release `release` answered. `rank`: the lowest stay."""

    release: str
    inputs: Mapping[str, Any]
    answers: Mapping[str, Any]
    digest: str  # of the inputs
    rank: int
    size_bytes: int


@dataclass(frozen=True)
class Draft:
    """A golden set that nobody added: its JSON lines, whose answers it expects, and how many requests were left out, by why."""

    lines: bytes
    items: int
    baseline: str
    left_out: Mapping[str, int]


def keep_rule(gate_policy: Mapping[str, Any]) -> KeepRule | None:
    """What the model's gate policy allows to keep; None where it says nothing, or cannot be read."""
    problems: list[Problem] = []
    read = KEPT_REQUESTS.read(gate_policy.get("kept_requests"), "", problems)
    if problems or not isinstance(read, dict):
        return None
    return KeepRule(int(read["most"]), float(read["max_age_days"]), int(read["max_bytes"]))


def sample(
    rule: KeepRule,
    secret: bytes,
    *,
    release: str,
    inputs: Sequence[Tensor],
    asked: Arrays,
    answered: Arrays,
    has_batch_axis: bool,
) -> Sample | None:
    """What would be kept of a request: of a batch one item, which the secret chooses.

    None for what is too large, is no JSON (bytes that are not UTF-8, NaN) or does not fit the model's `inputs`.
    """
    try:
        row = _number(secret, "row", *(_bytes(asked[name]) for name in sorted(asked)))
        values = {name: _value(array, row, has_batch_axis) for name, array in asked.items()}
        answers = {name: _value(array, row, has_batch_axis) for name, array in answered.items()}
        item_arrays(inputs, values)
        if Json().read([values, answers], "", []) is INVALID:
            return None
        text = canonical_bytes(values)
        size_bytes = len(text) + len(canonical_bytes(answers))
    except (ValueError, ZeroDivisionError):  # a batch of none has no row
        return None
    if size_bytes > rule.max_bytes:
        return None
    return Sample(release, values, answers, sha256_of(text), _number(secret, "rank", text), size_bytes)


def draft(kept: Sequence[Sample], golden: Mapping[str, Any], outputs: Sequence[Tensor], *, baseline: str) -> Draft:
    """A golden set of the requests that the release `baseline` answered, in the order of their ranks.

    By the policy's golden section: where it compares labels, an item's label is the baseline's answer; else each output is
    expected as the baseline gave it, those that the section names or all. Raises ValueError where no output holds the label.
    """
    left_out: Counter[str] = Counter()
    lines = []
    label_of = choose_output(outputs, golden["output"]).name if golden["compare"] == "label" else None
    wanted = [golden["output"]] if golden["output"] else [tensor.name for tensor in outputs]
    for one in sorted(kept, key=lambda one: one.rank):
        if one.release != baseline:
            left_out[f"answered by {one.release}"] += 1
        elif (right := _right(one, label_of, wanted, golden["labels"])) is None:
            left_out["without every output that is expected"] += 1
        else:
            item = {"id": f"kept-{one.digest.removeprefix('sha256:')[:16]}", "inputs": one.inputs, **right}
            lines.append(canonical_bytes(item))
    return Draft(b"".join(line + b"\n" for line in lines), len(lines), baseline, dict(left_out))


def _right(
    one: Sample, label_of: str | None, wanted: Sequence[str], names: Sequence[str] | None
) -> dict[str, Any] | None:
    if label_of is None:
        return {"expected": {name: one.answers[name] for name in wanted}} if set(wanted) <= set(one.answers) else None
    if label_of not in one.answers:
        return None
    value = one.answers[label_of]
    [answer] = answers_in(np.asarray([value], dtype=object if isinstance(value, str) else None), 1)
    label = in_words(answer, names)
    return None if label is None else {"label": label}


def _value(array: npt.NDArray[Any], row: int, has_batch_axis: bool) -> Any:
    """One item of an array as JSON; a tensor of one element as that alone. Raises ValueError, ZeroDivisionError."""
    item = array[row % len(array)] if has_batch_axis else array
    if item.dtype.kind == "f" and not np.isfinite(item).all():
        raise ValueError("not finite")
    if item.dtype.kind in "OS":
        texts = [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in item.ravel()]
        item = np.array([*texts, None], dtype=object)[:-1].reshape(item.shape)
    return item.ravel()[0] if item.size == 1 and item.dtype.kind == "O" else item.tolist()


def _bytes(array: npt.NDArray[Any]) -> bytes:
    return b"\0".join(map(_raw, array.ravel())) if array.dtype.kind == "O" else array.tobytes()


def _raw(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _number(secret: bytes, use: str, *parts: bytes) -> int:
    """A number below 2^56 that nobody can foresee who does not know the secret."""
    total = hashlib.blake2b(key=secret[:64], person=use.encode(), digest_size=_RANK_BYTES)
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(total.digest())
