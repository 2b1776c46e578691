"""Canonical JSON: one byte string for one value, so that a digest can be its name.

Source: RFC 8785 (JSON Canonicalization Scheme): members sorted by UTF-16 code units, no white space, numbers as
ECMAScript prints them, strings escaped only where they must be.
"""

from __future__ import annotations

import hashlib
import json
import math
from decimal import Decimal
from typing import Any

#: RFC 8785 keeps to I-JSON: integers beyond this lose precision in a double.
MAX_SAFE_INTEGER = 2**53 - 1
#: Made once: `json.dumps` makes an encoder for every text that it writes otherwise.
_TEXT = json.JSONEncoder(ensure_ascii=False)


def canonical_bytes(value: Any) -> bytes:
    """The RFC 8785 bytes of a JSON value. Raises ValueError, naming the path, for what JSON cannot hold exactly."""
    return "".join(_pieces(value, "$")).encode("utf-8")


def digest_of(value: Any) -> str:
    """`sha256:<64 hex>` of the canonical bytes."""
    return sha256_of(canonical_bytes(value))


def sha256_of(data: bytes) -> str:
    """`sha256:<64 hex>` of the bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _pieces(value: Any, path: str) -> list[str]:
    if value is None:
        return ["null"]
    if value is True:
        return ["true"]
    if value is False:
        return ["false"]
    if isinstance(value, str):
        return [_string(value, path)]
    if isinstance(value, int):
        if abs(value) > MAX_SAFE_INTEGER:
            raise ValueError(f"{path}: integer {value} is beyond 2^53-1; send it as a string")
        return [str(value)]
    if isinstance(value, float):
        return [_number(value, path)]
    if isinstance(value, (list, tuple)):
        out = ["["]
        for i, item in enumerate(value):
            out += [","] * (i > 0) + _pieces(item, f"{path}[{i}]")
        return [*out, "]"]
    if isinstance(value, dict):
        out, comma = [], "{"
        for key in _in_order(value, path):
            out += (comma, _string(key, path), ":")
            out += _pieces(value[key], f"{path}.{key}")
            comma = ","
        return [*out, "}"] if out else ["{}"]
    raise ValueError(f"{path}: {type(value).__name__} has no JSON form")


def _in_order(value: dict[Any, Any], path: str) -> list[str]:
    """The names of the members by UTF-16 code units, which are those of ASCII in the order that Python has."""
    if not all(isinstance(key, str) for key in value):
        raise ValueError(f"{path}: member names must be strings")
    if all(map(str.isascii, value)):
        return sorted(value)
    return sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))


def _string(text: str, path: str) -> str:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{path}: a lone surrogate has no UTF-8 form") from None
    return _TEXT.encode(text)


def _number(value: float, path: str) -> str:
    """A double as ECMAScript's Number::toString prints it. Source: RFC 8785 section 3.2.2.3, ECMA-262 section 6.1.6.1.20."""
    if not math.isfinite(value):
        raise ValueError(f"{path}: {value} has no JSON form")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    _, digits, exponent = Decimal(repr(abs(value))).normalize().as_tuple()
    text = "".join(map(str, digits))
    k, n = len(text), len(text) + int(exponent)
    if k <= n <= 21:
        return sign + text + "0" * (n - k)
    if 0 < n <= 21:
        return f"{sign}{text[:n]}.{text[n:]}"
    if -6 < n <= 0:
        return f"{sign}0.{'0' * -n}{text}"
    mantissa = text[0] + ("." + text[1:] if k > 1 else "")
    return f"{sign}{mantissa}e{'+' if n > 0 else '-'}{abs(n - 1)}"
