"""What a file was found to be: problems that refuse it, and facts for lint and diff."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from registry.core.schema import Problem

#: Tensors of one file that are read; a checkpoint split into files holds fewer in each.
MOST_TENSORS: Final = 100_000
#: A dimension or offset beyond this is a lie: no store holds it, and JSON cannot say it exactly.
LARGEST: Final = 2**53 - 1


@dataclass(frozen=True)
class Findings:
    """`kind` is what the name promises. `facts` is plain JSON, the same for the same bytes and kind; empty with problems.

    `can_be_data`: the bytes are no pickle, archive or program, so that a graph may keep its weights in them under any name.
    Facts that several formats share: `tensors` [[name, data type, shape]], by name; `inputs` and `outputs` likewise.
    """

    kind: str
    problems: tuple[Problem, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    can_be_data: bool = True


class Malformed(Exception):
    """The bytes are not what the name says: `message` has no full stop, `fix` says what to do."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def checked_tensors(found: dict[str, tuple[str, list[int]]]) -> list[list[Any]]:
    """[[name, data type, shape]] by name."""
    return [[name, data_type, shape] for name, (data_type, shape) in sorted(found.items())]


def elements_of(shape: list[int]) -> int:
    """How many numbers a tensor of this shape holds; 1 for a scalar."""
    product = 1
    for size in shape:
        product *= size
    return product


def shown(name: str) -> str:
    """A name from inside a file, fit for one line of an error."""
    text = ascii(name)
    return text if len(text) <= 80 else f"{text[:77]}...'"
