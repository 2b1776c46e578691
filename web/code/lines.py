"""A line of a text as HTML: escaped, its hidden characters boxed and its length folded."""

from __future__ import annotations

from typing import Final

from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe

from web.code.hidden import HIDDEN, code_point, name_of

#: Characters of a line that are shown before it is folded, and those that are shown once it is opened.
FOLDED_AFTER: Final = 500
MOST_OPENED: Final = 20_000


def html_of(text: str) -> SafeString:
    head = mark_safe(_shown(text[:FOLDED_AFTER]))  # noqa: S308 - every part of it was escaped
    more, unseen = len(text) - FOLDED_AFTER, len(text) - MOST_OPENED
    if more <= 0:
        return head
    return format_html(
        '{}<details class="k-fold"><summary>… {} more characters</summary>{}{}</details>',
        head,
        f"{more:,}",
        mark_safe(_shown(text[FOLDED_AFTER:MOST_OPENED])),  # noqa: S308
        f"… and {unseen:,} that only the file has." if unseen > 0 else "",
    )


def _shown(text: str) -> str:
    found, at = [], 0
    for match in HIDDEN.finditer(text):
        found += [conditional_escape(text[at : match.start()]), _boxed(match[0])]
        at = match.end()
    found.append(conditional_escape(text[at:]))
    return "".join(found).replace("\t", '<span class="k-tab">\t</span>')


def _boxed(char: str) -> str:
    return format_html('<span class="k-hid" title="{}">{}</span>', name_of(char), code_point(char))
