"""Conditions on releases, such as `metric.load.latency_p95<=50` or `envelope.accelerator.memory_mib_min<24000`, read with their types."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Final

from registry.core.envelope import ENVELOPE
from registry.core.schema import Flag, Integer, Number, Problem, Record, SchemaType, Text

#: More conditions than anybody writes for one question.
MOST_CONDITIONS: Final = 20
_LONGEST: Final = 300
_FORM: Final = re.compile(r"\s*(?P<field>[a-z][a-z0-9_.]*)\s*(?P<operator><=|>=|!=|=|<|>)\s*(?P<value>\S.*?)\s*")


class Operator(StrEnum):
    EQUAL = "="
    UNEQUAL = "!="
    BELOW = "<"
    AT_MOST = "<="
    ABOVE = ">"
    AT_LEAST = ">="


class FieldKind(StrEnum):
    """What a field holds. Text and flags are equal or not; numbers and instants have an order too."""

    TEXT = "text"
    FLAG = "true or false"
    NUMBER = "a number"
    INSTANT = "a time"


Value = str | bool | float | datetime


@dataclass(frozen=True)
class Condition:
    """`field` compared with `value`, which has the field's kind."""

    field: str
    operator: Operator
    value: Value


def _leaves(kind: SchemaType, place: str) -> dict[str, FieldKind]:
    if isinstance(kind, Record):
        found: dict[str, FieldKind] = {}
        for name, member in kind.members.items():
            found |= _leaves(member.kind, f"{place}.{name}")
        return found
    kinds = {Text: FieldKind.TEXT, Flag: FieldKind.FLAG, Integer: FieldKind.NUMBER, Number: FieldKind.NUMBER}
    return {place: kinds[type(kind)]} if type(kind) in kinds else {}


#: What a release says of itself: every single value of its envelope, and a few of its own. Lists cannot be compared.
FIELDS: Final[Mapping[str, FieldKind]] = {
    "author": FieldKind.TEXT,
    "label": FieldKind.TEXT,
    "sealed_at": FieldKind.INSTANT,
    "state": FieldKind.TEXT,
    "text": FieldKind.TEXT,
    **_leaves(ENVELOPE, "envelope"),
}


def read_condition(text: str, fields: Mapping[str, FieldKind] = FIELDS) -> Condition | Problem:
    """The condition, or what is wrong with it and what to write instead. `fields`: all that may be named, with their kinds."""
    form = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if form is None:
        return Problem("where", f"{text[:80]!r} is no condition.", "Write FIELD, one of = != < <= > >=, and a value.")
    name, operator = form["field"], Operator(form["operator"])
    kind = fields.get(name)
    if kind is None:
        near = get_close_matches(name, fields, n=3, cutoff=0.5)
        fix = f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(sorted(fields))}."
        return Problem("where", f"{name} is no field of a release that can be compared.", fix)
    if kind in (FieldKind.TEXT, FieldKind.FLAG) and operator not in (Operator.EQUAL, Operator.UNEQUAL):
        return Problem("where", f"{name} is {kind.value}, which has no order.", "Compare it with = or !=.")
    value = _value(kind, form["value"])
    if value is None:
        return Problem("where", f"{name} is {kind.value}, and {form['value']!r} is none.", _LIKE[kind])
    return Condition(name, operator, value)


_LIKE: Final = {
    FieldKind.FLAG: "Write true or false.",
    FieldKind.NUMBER: "Write one without a unit, such as 0.9 or 24000.",
    FieldKind.INSTANT: "Write one in ISO 8601, such as 2026-11-22 or 2026-11-22T08:00:00Z.",
    FieldKind.TEXT: "Write some.",
}


def _value(kind: FieldKind, text: str) -> Value | None:
    """The text as a value of the kind; None for what is none."""
    if kind is FieldKind.TEXT:
        return None if "\0" in text else text.strip("\"'")
    if kind is FieldKind.FLAG:
        return {"true": True, "false": False}.get(text)
    try:
        if kind is FieldKind.NUMBER:
            number = float(text)
            return number if math.isfinite(number) else None
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
