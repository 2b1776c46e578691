"""Types of policy fields that several sections share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from registry.core.schema import Number, Problem, SchemaType, Text

FRACTION = Number(0, 1)
SECONDS = Number(0, 86_400, above=True, unit="seconds")
MILLISECONDS = Number(0, 86_400_000, above=True, unit="milliseconds")
CONFIDENCE = Number(0.5, 0.9999)
#: A gate whose section has this field, `undecided`, may be allowed to end undecided.
UNDECIDED = Text(one_of=("allow", "block"), says="an answer to an undecided verdict")


@dataclass(frozen=True)
class OrWord:
    """The type, or one word."""

    word: str
    kind: SchemaType

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        return value if value == self.word else self.kind.read(value, at, problems)


@dataclass(frozen=True)
class OrNone:
    """The type, or null. Null demands nothing, or in the load section takes the model's objective."""

    kind: SchemaType

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        return None if value is None else self.kind.read(value, at, problems)
