"""Two texts compared line by line, with the words that differ within a line. Bounded in work and in what is shown.

Source of the bounds: measured on `difflib` (2,000 lines of six kinds take half a second without `autojunk`; lines that each make
up just less than a hundredth of a long text have no such remedy), so every step of the matcher is counted before it is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from typing import Any, Final

#: Longer texts are not compared: take the whole files.
LONGEST_BYTES: Final = 512 << 10
MOST_LINES: Final = 20_000
#: Lines that one answer shows as removed or added; the counts are whole.
MOST_CHANGED: Final = 3_000
#: Equal lines around what differs.
CONTEXT: Final = 3
#: Comparisons of two lines, or of two words, for one answer: some tenths of a second.
MOST_WORK: Final = 3_000_000
#: Above so many lines the matcher looks away from those that are everywhere, as `difflib` does above 200.
_POPULAR_ABOVE: Final = 2_000
#: Words are compared in lines that are not longer, and alike enough for it to help.
_LONGEST_LINE, _ALIKE = 1_000, 0.4
_WORD: Final = re.compile(r"\w+|\s+|[^\w\s]")
#: JSON written out anew may be so much longer than a text may be; deep nesting makes indentation of megabytes.
_LONGEST_WRITTEN: Final = 4 * LONGEST_BYTES


@dataclass(frozen=True)
class Line:
    """`kind`: same, old (only the older text has it) or new. Numbers begin at 1. `marks`: the spans [from, to) that differ."""

    kind: str
    old: int | None
    new: int | None
    text: str
    marks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Hunk:
    """Lines that lie together; `skipped` equal ones are left out before them."""

    skipped: int
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class TextDiff:
    """`left_off`: changed lines that are not among the hunks. `is_coarse`: the matcher's work ran out, so that equal lines may
    be among those that are told as changed. `why_not`: why the texts were not compared at all; empty where they were."""

    hunks: tuple[Hunk, ...] = ()
    added: int = 0
    removed: int = 0
    left_off: int = 0
    skipped_after: int = 0
    is_coarse: bool = False
    work: int = 0
    why_not: str = ""


class _Budget:
    """Comparisons that may still be made, and those that were."""

    def __init__(self, most: int) -> None:
        self.most, self.spent, self.ran_out = most, 0, False

    def take(self, work: int) -> bool:
        if self.spent + work > self.most:
            self.ran_out = True
            return False
        self.spent += work
        return True


class _Counting(SequenceMatcher[str]):
    """A matcher that takes no step before it is paid for; what is unpaid for is told as no match."""

    def __init__(self, old: Sequence[str], new: Sequence[str], budget: _Budget, *, autojunk: bool) -> None:
        super().__init__(None, old, new, autojunk=autojunk)
        self._budget = budget
        self._costs = [0]
        for item in old:
            self._costs.append(self._costs[-1] + 1 + len(self.b2j.get(item, ())))  # type: ignore[attr-defined]

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        ahi = len(self._costs) - 1 if ahi is None else ahi
        if not self._budget.take(self._costs[ahi] - self._costs[alo]):
            return Match(alo, blo, 0)
        return super().find_longest_match(alo, ahi, blo, bhi)


def compare_texts(old: str, new: str, *, most_work: int = MOST_WORK) -> TextDiff:
    """What the second text changes against the first. An empty text has no lines."""
    longest = max(len(old.encode(errors="replace")), len(new.encode(errors="replace")))
    if longest > LONGEST_BYTES:
        return TextDiff(why_not=f"The longer has {longest} bytes, and {LONGEST_BYTES} are compared.")
    before, after = lines_of(old), lines_of(new)
    if max(len(before), len(after)) > MOST_LINES:
        return TextDiff(why_not=f"The longer has {max(len(before), len(after))} lines, and {MOST_LINES} are compared.")
    return _compared(before, after, most_work)


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


def _compared(before: list[str], after: list[str], most_work: int) -> TextDiff:
    head = _equal_ends(before, after)
    tail = _equal_ends(before[head:][::-1], after[head:][::-1])
    middle = before[head : len(before) - tail], after[head : len(after) - tail]
    budget = _Budget(most_work)
    changes = _changes(*middle, budget)
    removed = sum(a2 - a1 for a1, a2, _, _ in changes)
    added = sum(b2 - b1 for _, _, b1, b2 in changes)
    shown, room = [], MOST_CHANGED
    for a1, a2, b1, b2 in changes:
        if room <= 0:
            break
        a2, b2 = min(a2, a1 + room), min(b2, b1 + max(0, room - (a2 - a1)))
        room -= (a2 - a1) + (b2 - b1)
        shown.append((a1 + head, a2 + head, b1 + head, b2 + head))
    hunks, end = _hunks(before, after, shown, budget)
    left_off = removed + added - (MOST_CHANGED - room)
    return TextDiff(
        hunks=tuple(hunks),
        added=added,
        removed=removed,
        left_off=left_off,
        skipped_after=0 if left_off else len(after) - end,
        is_coarse=budget.ran_out,
        work=budget.spent,
    )


def _equal_ends(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _changes(before: list[str], after: list[str], budget: _Budget) -> list[tuple[int, int, int, int]]:
    """[from, to) in the older and in the newer lines of each run that differs."""
    if not before or not after:
        return [(0, len(before), 0, len(after))] if before or after else []
    is_long = max(len(before), len(after)) > _POPULAR_ABOVE
    found = _Counting(before, after, budget, autojunk=is_long).get_opcodes()
    if budget.ran_out and not is_long:
        budget.most += (
            budget.spent
        )  # a second try, which looks away from lines that are everywhere: coarse all the same
        found = _Counting(before, after, budget, autojunk=True).get_opcodes()
    return [(a1, a2, b1, b2) for how, a1, a2, b1, b2 in found if how != "equal"]


def _hunks(
    before: list[str], after: list[str], changes: list[tuple[int, int, int, int]], budget: _Budget
) -> tuple[list[Hunk], int]:
    """(the hunks, how many newer lines lie before the end of the last). Changes nearer than twice the context share one."""
    hunks: list[Hunk] = []
    lines: list[Line] = []
    at = skipped = 0  # `at`: the next newer line to be told
    for position, (a1, a2, b1, b2) in enumerate(changes):
        gap = b1 - at
        if lines and gap <= 2 * CONTEXT:
            lines += _same(after, at, b1, a1 - b1)
        else:
            if lines:
                told = min(at + CONTEXT, len(after))
                lines += _same(after, at, told, changes[position - 1][1] - changes[position - 1][3])
                hunks.append(Hunk(skipped, tuple(lines)))
                at = told
            begin = max(at, b1 - CONTEXT)
            skipped, lines = begin - at, _same(after, begin, b1, a1 - b1)
        lines += _differing(before, after, (a1, a2, b1, b2), budget)
        at = b2
    if lines:
        told = min(at + CONTEXT, len(after))
        lines += _same(after, at, told, changes[-1][1] - changes[-1][3])
        hunks.append(Hunk(skipped, tuple(lines)))
        at = told
    return hunks, at


def _same(after: list[str], begin: int, end: int, shift: int) -> list[Line]:
    return [Line("same", at + shift + 1, at + 1, after[at]) for at in range(begin, end)]


def _differing(
    before: list[str], after: list[str], change: tuple[int, int, int, int], budget: _Budget
) -> Iterator[Line]:
    """The older lines, then the newer ones; the first older one has its words compared with the first newer one, and so on."""
    a1, a2, b1, b2 = change
    marks = [_word_marks(before[a1 + i], after[b1 + i], budget) for i in range(min(a2 - a1, b2 - b1))]
    for i in range(a1, a2):
        yield Line("old", i + 1, None, before[i], marks[i - a1][0] if i - a1 < len(marks) else ())
    for i in range(b1, b2):
        yield Line("new", None, i + 1, after[i], marks[i - b1][1] if i - b1 < len(marks) else ())


Marks = tuple[tuple[int, int], ...]


def _word_marks(old: str, new: str, budget: _Budget) -> tuple[Marks, Marks]:
    """Spans of the words that differ; none where the lines have too little in common for that to help."""
    if max(len(old), len(new)) > _LONGEST_LINE:
        return (), ()
    words = _WORD.findall(old), _WORD.findall(new)
    ran_out = budget.ran_out
    matcher = _Counting(*words, budget, autojunk=False)
    if matcher.real_quick_ratio() < _ALIKE or matcher.quick_ratio() < _ALIKE:
        return (), ()
    found = matcher.get_opcodes()
    is_unpaid, budget.ran_out = budget.ran_out and not ran_out, ran_out  # words that are not marked make no diff coarse
    same = sum(a2 - a1 for how, a1, a2, _, _ in found if how == "equal")
    if is_unpaid or 2 * same < _ALIKE * (len(words[0]) + len(words[1])):
        return (), ()
    ends = [_ends_of(side) for side in words]
    differing = [code for code in found if code[0] != "equal"]
    return (
        tuple((ends[0][a1], ends[0][a2]) for _, a1, a2, _, _ in differing if a2 > a1),
        tuple((ends[1][b1], ends[1][b2]) for _, _, _, b1, b2 in differing if b2 > b1),
    )


def _ends_of(words: list[str]) -> list[int]:
    """Where each word begins, and where the last ends."""
    found = [0]
    for word in words:
        found.append(found[-1] + len(word))
    return found
