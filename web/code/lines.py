"""A line of a text as HTML: escaped, coloured, with its marks, its hidden characters boxed and its length folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe

from web.code.hidden import HIDDEN, code_point, name_of

#: Characters of a line that are shown before it is folded, and those that are shown once it is opened.
FOLDED_AFTER: Final = 500
MOST_OPENED: Final = 20_000


def html_of(
    text: str, pieces: Sequence[tuple[str, int]] | None = None, marks: Sequence[tuple[int, int]] = ()
) -> SafeString:
    """The line's HTML. `pieces` cover it, (class, length) each; `marks` are spans [from, to) of it that differ from another."""
    spans = list(_spans(len(text), pieces or ((("", len(text)),) if text else ()), marks))
    head = "".join(_span(text, *span) for span in _cut(spans, 0, FOLDED_AFTER))
    if len(text) <= FOLDED_AFTER:
        return mark_safe(head)  # noqa: S308 - every part of it was escaped
    rest = "".join(_span(text, *span) for span in _cut(spans, FOLDED_AFTER, MOST_OPENED))
    more = len(text) - FOLDED_AFTER
    unseen = len(text) - MOST_OPENED
    return format_html(
        '{}<details class="k-fold"><summary>… {} more characters</summary>{}{}</details>',
        mark_safe(head),  # noqa: S308
        f"{more:,}",
        mark_safe(rest),  # noqa: S308
        f"… and {unseen:,} that only the file has." if unseen > 0 else "",
    )


def _spans(
    length: int, pieces: Sequence[tuple[str, int]], marks: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, str, bool]]:
    """(from, to, class, whether it is marked): pieces and marks merged by their offsets."""
    ends = [edge for mark in marks for edge in mark]
    at = edge = 0
    for name, size in pieces:
        end = min(at + size, length)
        while at < end:
            while edge < len(ends) and ends[edge] <= at:
                edge += 1
            stop = min(end, ends[edge]) if edge < len(ends) else end
            yield at, stop, name, edge % 2 == 1
            at = stop


def _cut(spans: Sequence[tuple[int, int, str, bool]], begin: int, end: int) -> Iterator[tuple[int, int, str, bool]]:
    for a, b, name, is_marked in spans:
        if a < end and b > begin:
            yield max(a, begin), min(b, end), name, is_marked


def _span(text: str, begin: int, end: int, name: str, is_marked: bool) -> str:
    inner = _shown(text[begin:end])
    if name:
        inner = f'<span class="{name}">{inner}</span>'  # a class from our own list
    return f"<mark>{inner}</mark>" if is_marked else inner


def _shown(text: str) -> str:
    found, at = [], 0
    for match in HIDDEN.finditer(text):
        found += [conditional_escape(text[at : match.start()]), _boxed(match[0])]
        at = match.end()
    found.append(conditional_escape(text[at:]))
    return "".join(found).replace("\t", '<span class="k-tab">\t</span>')


def _boxed(char: str) -> str:
    return format_html('<span class="k-hid" title="{}">{}</span>', name_of(char), code_point(char))
