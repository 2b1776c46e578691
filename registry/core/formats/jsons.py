"""JSON from outside, read without trusting its size or depth."""

from __future__ import annotations

import json
from typing import Any, Final

from registry.core.formats.findings import Malformed, shown

#: Lists and objects, and members of them: what bounds the memory that a parsed text takes.
MOST_CONTAINERS: Final = 3_000_000
MOST_MEMBERS: Final = 12_000_000


def parse(data: bytes, what: str) -> Any:
    """The value. Raises Malformed for what is not JSON, names a member twice, or is too deep or too wide."""
    if data.count(b"[") + data.count(b"{") > MOST_CONTAINERS or data.count(b",") > MOST_MEMBERS:
        raise Malformed(f"{what} has too many parts to be read", "Split it into smaller files.")
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise Malformed(f"{what} is not UTF-8 at byte {error.start}", "Write it as UTF-8.") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Malformed(
            f"{what} is not JSON: {error.msg} at {where}", "Write valid JSON, or send the whole file."
        ) from error
    except RecursionError as error:
        raise Malformed(f"{what} is nested too deep", "Flatten it.") from error
    except ValueError as error:  # a number of thousands of digits
        raise Malformed(f"{what} holds a number that cannot be read", "Write ordinary numbers.") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers disagree on which of two equal names counts, so that one file would be two."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise Malformed(f"the name {shown(twice)} occurs twice", "Give every member a name of its own.")
    return found
