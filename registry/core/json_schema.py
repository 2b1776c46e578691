"""A tree of kinds as JSON Schema, so that editors and CI can check what they write before it is sent.

The schema is generated from the very table that reads values (`registry.core.schema`), so that the two cannot differ.
"""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any, Final

from registry.core.envelope import ENVELOPE
from registry.core.schema import (
    LONGEST_NAME,
    Flag,
    Instant,
    Integer,
    Json,
    ListOf,
    Number,
    Object,
    Record,
    SchemaType,
    TensorName,
    Text,
)

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
#: Text may hold no control characters but tab and newline.
_PLAIN: Final = r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*$"

#: A tensor's name has no control characters at all, and no space at either end.
_NAME: Final = r"^(?! )[^\x00-\x1f\x7f-\x9f]*(?<! )$"


def envelope_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the `envelope` in release.yaml."""
    return {
        "$schema": DIALECT,
        "title": "Sluicegate resource envelope, version 1",
        "description": "What a release declares that it needs, may be asked, and delivers. What is left out is unknown. "
        "Contradictions between fields, and with serving and the files, are found by the server.",
        **schema_of(ENVELOPE),
    }


@singledispatch
def schema_of(kind: SchemaType) -> dict[str, Any]:
    """The schema that accepts what the kind reads without a problem."""
    raise TypeError(f"{type(kind).__name__} has no JSON Schema yet; register one here.")


@schema_of.register
def _text(kind: Text) -> dict[str, Any]:
    if kind.one_of:
        return {"enum": list(kind.one_of)}
    found: dict[str, Any] = {"type": "string", "maxLength": kind.most}
    found["pattern"] = f"^({kind.pattern})$" if kind.pattern else _PLAIN
    return {
        **found,
        **({"description": f"{kind.says}: {kind.rule}" if kind.rule else kind.says} if kind.says else {}),
        **({"examples": [kind.like.strip('"')]} if kind.like else {}),
    }


@schema_of.register
def _tensor_name(kind: TensorName) -> dict[str, Any]:
    names = {"minLength": 1, "maxLength": LONGEST_NAME, "pattern": _NAME}
    return {"type": "string", **names, "description": "a tensor's name: printable, no space at either end"}


@schema_of.register
def _whole(kind: Integer) -> dict[str, Any]:
    span = {"type": "integer", "minimum": kind.least, "maximum": kind.most}
    found: dict[str, Any] = {"anyOf": [{"enum": list(kind.besides)}, span]} if kind.besides else span
    return {**found, **_unit(kind.unit)}


@schema_of.register
def _number(kind: Number) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "number", "exclusiveMinimum" if kind.above else "minimum": kind.least}
    if kind.most < math.inf:
        found["maximum"] = kind.most
    return {**found, **_unit(kind.unit)}


@schema_of.register
def _flag(kind: Flag) -> dict[str, Any]:
    return {"type": "boolean"}


@schema_of.register
def _instant(kind: Instant) -> dict[str, Any]:
    return {"type": "string", "description": "ISO 8601"}


@schema_of.register
def _json(kind: Json) -> dict[str, Any]:
    return {}


@schema_of.register
def _many(kind: ListOf) -> dict[str, Any]:
    return {"type": "array", "items": schema_of(kind.of), "minItems": kind.least, "maxItems": kind.most}


@schema_of.register
def _table(kind: Object) -> dict[str, Any]:
    names = {"minLength": 1, "maxLength": LONGEST_NAME}
    return {
        "type": "object",
        "additionalProperties": schema_of(kind.of),
        "propertyNames": names,
        "maxProperties": kind.most,
    }


@schema_of.register
def _record(kind: Record) -> dict[str, Any]:
    members = {}
    for name, member in kind.members.items():
        found = schema_of(member.kind)
        members[name] = {"anyOf": [found, {"type": "null"}]} if member.default is None else found
    needed = [name for name, member in kind.members.items() if member.is_needed]
    return {
        "type": "object",
        "properties": members,
        "additionalProperties": False,
        **({"required": needed} if needed else {}),
    }


def _unit(unit: str) -> dict[str, Any]:
    return {"description": unit} if unit else {}
