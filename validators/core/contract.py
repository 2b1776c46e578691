"""Whether a server keeps its word: names, data types, shapes and finite numbers, as declared and as really answered.

Inference servers do not check a model's answers. An unknown output name, a wrong data type, a wrong shape and a NaN all
arrive with status 200, so each is looked for here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from registry.core.serving import sent_dims
from serving.servers.core.made_up import NUMPY_TYPES
from validators.core.verdict import Judgement, Verdict

_OIP_NAMES = {numpy_name: name for name, numpy_name in NUMPY_TYPES.items() if name != "BF16"}


@dataclass(frozen=True)
class Tensor:
    """A declared tensor. `dims` leave the batch axis out; -1 is any size."""

    name: str
    data_type: str
    dims: tuple[int, ...]

    @classmethod
    def of(cls, declared: Mapping[str, Any]) -> Tensor:
        return cls(str(declared["name"]), str(declared["data_type"]), tuple(int(d) for d in declared["dims"]))


@dataclass(frozen=True)
class Mismatch:
    """One broken promise. `kind` is stable for code: missing, extra, data_type, shape, not_finite, refused; and those of
    `validators.core.edges`.
    """

    kind: str
    tensor: str
    message: str
    batch_size: int | None = None


def tensors_of(section: Mapping[str, Any], side: str, *, are_sent: bool = True) -> tuple[Tensor, ...]:
    """The declared tensors of a serving config's or a contract's `inputs` or `outputs`; none where it declares none.

    `are_sent`: with the dims of requests and answers, where one number for each item has the dims (1,). Otherwise with
    those of the graph.
    """
    declared = section.get(side) or ()
    if are_sent:
        declared = [{**one, "dims": sent_dims(one["dims"])} for one in declared]
    return tuple(Tensor.of(one) for one in declared)


def batch_sizes(wanted: Sequence[int | str], max_batch_size: int) -> tuple[int, ...]:
    """The sizes to try, rising and each once: "max" resolved, larger ones cut to it; (1,) for a model that does not batch."""
    most = max(1, max_batch_size)
    return tuple(sorted({most if size == "max" else min(int(size), most) for size in wanted}))


def compare_declared(
    side: str, expected: Iterable[Tensor], stated: Iterable[Tensor], *, by: str, extra_is_wrong: bool = True
) -> list[Mismatch]:
    """What `stated` (the server's metadata, or a release's config) says otherwise than `expected`. `by` names who states it."""
    wanted = {tensor.name: tensor for tensor in expected}
    found = {tensor.name: tensor for tensor in stated}
    out = [Mismatch("missing", name, f"{by} has no {side} {name}.") for name in wanted.keys() - found.keys()]
    if extra_is_wrong:
        out += [
            Mismatch("extra", name, f"{by} has an undeclared {side} {name}.") for name in found.keys() - wanted.keys()
        ]
    for name in wanted.keys() & found.keys():
        want, have = wanted[name], found[name]
        if want.data_type != have.data_type:
            out.append(
                Mismatch(
                    "data_type", name, f"{by} says {side} {name} is {have.data_type}, declared is {want.data_type}."
                )
            )
        if not _fits(have.dims, want.dims):
            out.append(
                Mismatch("shape", name, f"{by} says {side} {name} is {list(have.dims)}, declared is {list(want.dims)}.")
            )
    return sorted(out, key=lambda mismatch: (mismatch.tensor, mismatch.kind))


def compare_answer(
    expected: Iterable[Tensor], answered: Mapping[str, npt.NDArray[Any]], *, batch_size: int | None
) -> list[Mismatch]:
    """What a real answer breaks of the declared outputs. `batch_size` is None for a model without a batch axis."""
    wanted = {tensor.name: tensor for tensor in expected}
    out = [
        Mismatch("missing", name, f"The answer lacks output {name}.", batch_size)
        for name in wanted.keys() - answered.keys()
    ] + [
        Mismatch("extra", name, f"The answer has an undeclared output {name}.", batch_size)
        for name in answered.keys() - wanted.keys()
    ]
    for name in wanted.keys() & answered.keys():
        out += _compare_array(wanted[name], answered[name], batch_size)
    return sorted(out, key=lambda mismatch: (mismatch.tensor, mismatch.kind))


def _compare_array(want: Tensor, have: npt.NDArray[Any], batch_size: int | None) -> list[Mismatch]:
    out = []
    name = want.name
    if _type_name(have) != _type_name(np.empty(0, dtype=NUMPY_TYPES.get(want.data_type, "object"))):
        out.append(
            Mismatch(
                "data_type",
                name,
                f"Output {name} came as {_type_name(have)}, declared is {want.data_type}.",
                batch_size,
            )
        )
    shape = want.dims if batch_size is None else (batch_size, *want.dims)
    if not _fits(have.shape, shape):
        out.append(
            Mismatch("shape", name, f"Output {name} came as {list(have.shape)}, declared is {list(shape)}.", batch_size)
        )
    elif have.size == 0 and 0 not in shape:
        out.append(Mismatch("shape", name, f"Output {name} came empty.", batch_size))
    if have.dtype.kind == "f":
        bad = int(np.size(have) - np.count_nonzero(np.isfinite(have)))
        if bad:
            out.append(
                Mismatch(
                    "not_finite", name, f"Output {name} holds {bad} NaN or infinite of {have.size} values.", batch_size
                )
            )
    return out


def _type_name(array: npt.NDArray[Any]) -> str:
    """The protocol's word for an array's type; text in any numpy form is BYTES."""
    return "BYTES" if array.dtype.kind in "OSU" else _OIP_NAMES.get(array.dtype.name, array.dtype.name)


def _fits(have: Sequence[int], want: Sequence[int]) -> bool:
    return len(have) == len(want) and all(-1 in (h, w) or h == w for h, w in zip(have, want, strict=True))


def judge_contract(
    declared: Sequence[Mismatch], answered: Mapping[int, Sequence[Mismatch]], *, refused: Mapping[int, str]
) -> Judgement:
    """The verdict on what was declared wrongly, what was answered wrongly by batch size, and which batch sizes were refused."""
    broken = [*declared, *(mismatch for found in answered.values() for mismatch in found)]
    broken += [
        Mismatch("refused", "", f"A batch of {size} was not answered: {why}", size) for size, why in refused.items()
    ]
    tried = sorted({*answered, *refused})
    evidence = {
        "batch_sizes": tried,
        "mismatches": [asdict(mismatch) for mismatch in broken],
    }
    if broken:
        more = f" ({len(broken) - 1} more)" if len(broken) > 1 else ""
        return Judgement(Verdict.FAILED, f"{broken[0].message}{more}", evidence)
    sizes = ", ".join(map(str, tried))
    return Judgement(
        Verdict.PASSED, f"Names, data types, shapes and numbers are as declared at batch sizes {sizes}.", evidence
    )
