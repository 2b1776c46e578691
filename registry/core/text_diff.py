"""Two texts compared line by line by `difflib`. Bounded in work and in what is shown.

Source of the bound: `difflib` takes half a second for 2,000 lines of six kinds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final

#: Longer texts are not compared: take the whole files.
LONGEST_BYTES: Final = 512 << 10
MOST_LINES: Final = 2_000
#: Equal lines around what differs.
CONTEXT: Final = 3
#: JSON written out anew may be so much longer than a text may be; deep nesting makes indentation of megabytes.
_LONGEST_WRITTEN: Final = 4 * LONGEST_BYTES


@dataclass(frozen=True)
class Line:
    """`kind`: same, old (only the older text has it) or new. Numbers begin at 1."""

    kind: str
    old: int | None
    new: int | None
    text: str


@dataclass(frozen=True)
class Hunk:
    """Lines that lie together; `skipped` equal ones are left out before them."""

    skipped: int
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class TextDiff:
    """`lines`: how many were compared. `why_not`: why the texts were not compared at all; empty where they were."""

    hunks: tuple[Hunk, ...] = ()
    added: int = 0
    removed: int = 0
    skipped_after: int = 0
    lines: int = 0
    why_not: str = ""


def compare_texts(old: str, new: str, *, most_lines: int = MOST_LINES) -> TextDiff:
    """What the second text changes against the first. An empty text has no lines."""
    before, after = lines_of(old), lines_of(new)
    longest = max(len(before), len(after))
    if longest > most_lines:
        return TextDiff(why_not=f"The longer has {longest} lines, and {most_lines} are compared.")
    hunks, added, removed, end = list[Hunk](), 0, 0, 0
    for group in SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(CONTEXT):
        lines = list[Line]()
        for how, a1, a2, b1, b2 in group:
            if how == "equal":
                lines += [Line("same", a1 + i + 1, b1 + i + 1, after[b1 + i]) for i in range(b2 - b1)]
                continue
            lines += [Line("old", i + 1, None, before[i]) for i in range(a1, a2)]
            lines += [Line("new", None, i + 1, after[i]) for i in range(b1, b2)]
            removed, added = removed + a2 - a1, added + b2 - b1
        hunks.append(Hunk(group[0][3] - end, tuple(lines)))
        end = group[-1][4]
    return TextDiff(tuple(hunks), added, removed, len(after) - end if hunks else 0, longest)


def lines_of(text: str) -> list[str]:
    """The text's lines, without their ends. A carriage return before the end stays: it is a difference that counts."""
    found = text.split("\n")
    return found[:-1] if found[-1] == "" else found


def sorted_json(text: str) -> str | None:
    """The JSON with its members sorted, each on a line; None where it cannot be read, or would say less so written.

    An object that names a member twice is left as it is: readers differ in which of them they take.
    """

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        read = dict(pairs)
        if len(read) != len(pairs):
            raise ValueError("a member is named twice")
        return read

    written, length = [], 0
    try:
        read = json.loads(text, object_pairs_hook=members)
        for piece in json.JSONEncoder(indent=2, sort_keys=True, ensure_ascii=False).iterencode(read):
            written.append(piece)
            length += len(piece)
            if length > _LONGEST_WRITTEN:
                return None
    except (ValueError, RecursionError):
        return None
    return "".join(written) + "\n"
