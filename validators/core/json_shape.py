"""Whether a text is JSON of a wanted shape: the part of JSON Schema that says what a model's answer has to look like.

`type`, `enum`, `const`, `required`, `properties`, `additionalProperties` (true or false), `items`, `minItems`, `maxItems`,
`minLength`, `maxLength`, `minimum`, `maximum`. Every other word is refused, since it would be obeyed by nobody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
_BOUNDS: Final = {"minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum"}
WORDS: Final = frozenset({"type", "enum", "const", "required", "properties", "additionalProperties", "items", *_BOUNDS})
_DEEPEST = 32


def fault_of_schema(schema: Any, at: str = "schema", depth: int = 0) -> str | None:
    """Why this is no schema that can be checked here; None where it is one."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return f"{at} is not an object, or too deep"
    unknown = sorted(set(schema) - WORDS)
    if unknown:
        return f"{at} says {unknown[0]!r}; known are {', '.join(sorted(WORDS))}"
    kinds = _listed(schema.get("type", list(_TYPES)))
    if not kinds or not all(isinstance(one, str) and one in _TYPES for one in kinds):
        return f"{at}.type is none of {', '.join(sorted(_TYPES))}"
    wrong = sorted(name for name in _BOUNDS & schema.keys() if not _is_number(schema[name]))
    wrong += [name for name in ("required", "enum") if not isinstance(schema.get(name, []), list)]
    if wrong:
        return f"{at}.{wrong[0]} is not of its type"
    wrong = ["required"] * (not all(isinstance(one, str) for one in schema.get("required", [])))
    wrong += ["additionalProperties"] * (not isinstance(schema.get("additionalProperties", True), bool))
    wrong += ["properties"] * (not isinstance(schema.get("properties", {}), Mapping))
    if wrong:
        return f"{at}.{wrong[0]} is not of its type"
    parts = [(f"{at}.properties.{name}", part) for name, part in schema.get("properties", {}).items()]
    parts += [(f"{at}.items", schema["items"])] if "items" in schema else []
    return next((fault for name, part in parts if (fault := fault_of_schema(part, name, depth + 1))), None)


def schema_like(value: Any, depth: int = 0) -> dict[str, Any]:
    """What another value must have to be like this one: the same type, and in an object the same keys, each like its own.

    What lies deeper than 32 objects may be anything.
    """
    if depth > _DEEPEST:
        return {}
    if isinstance(value, dict):
        parts = {name: schema_like(part, depth + 1) for name, part in value.items()}
        return {"type": "object", "required": sorted(value), "properties": parts}
    kinds = [name for name, types in _TYPES.items() if _is_of(value, types) and name != "integer"]
    return {"type": kinds}


def read(text: str) -> tuple[bool, Any]:
    """(whether it is JSON, its value)."""
    try:
        return True, json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False, None


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether the value is as the schema says."""
    kinds = _listed(schema.get("type", list(_TYPES)))
    if not any(_is_of(value, _TYPES[kind]) for kind in kinds):
        return False
    if "const" in schema and not _same(value, schema["const"]):
        return False
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        return False
    if isinstance(value, dict):
        return _object_fits(value, schema)
    if isinstance(value, list):
        items = schema.get("items")
        return _within(len(value), schema, "Items") and (items is None or all(fits(one, items) for one in value))
    if isinstance(value, str):
        return _within(len(value), schema, "Length")
    return not _is_number(value) or _within(value, schema, "imum")


def _object_fits(value: dict[str, Any], schema: Mapping[str, Any]) -> bool:
    known = schema.get("properties", {})
    if not set(schema.get("required", ())) <= value.keys():
        return False
    if schema.get("additionalProperties", True) is False and not value.keys() <= known.keys():
        return False
    return all(fits(part, known[name]) for name, part in value.items() if name in known)


def _within(size: float, schema: Mapping[str, Any], of: str) -> bool:
    least, most = schema.get(f"min{of}", size), schema.get(f"max{of}", size)
    return bool(least <= size <= most)


def _listed(kinds: Any) -> list[Any]:
    return kinds if isinstance(kinds, list) else [kinds]


def _is_of(value: Any, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and (not isinstance(value, bool) or bool in types)


def _is_number(value: Any) -> bool:
    return _is_of(value, (int, float))


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
