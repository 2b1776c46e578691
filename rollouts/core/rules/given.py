"""Facts of a tick for one rule alone. They are recorded with the tick, so that a replay has them too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self


@dataclass(frozen=True)
class RuleInput:
    """Fields with defaults, which hold if the tick has no such facts."""

    #: The rule's.
    name: ClassVar[str]
    #: By field: its name in the ticks that older versions recorded.
    earlier: ClassVar[Mapping[str, str]] = {}

    def to_json(self) -> dict[str, Any]:
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(**{one.name: value[one.name] for one in fields(cls) if one.name in value})
