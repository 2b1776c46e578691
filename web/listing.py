"""What every list does alike: filters and an order that stand in its address, so that both can be shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from django.http import HttpRequest
from django.utils.safestring import SafeString, mark_safe

#: Longer words are nobody's: they would only make the database work.
LONGEST_WORD = 200


@dataclass(frozen=True)
class Filter:
    """One field of a list's toolbar (`_parts/toolbar.html`). `kind` is the input's type; with `options` one chooses."""

    name: str
    label: str
    options: Sequence[tuple[str, str]] = ()
    kind: str = "text"
    hint: str = ""
    value: str = ""

    @property
    def choices(self) -> SafeString:
        """The options as markup, the chosen one marked: a template takes long over many."""
        options = [("", "all"), *self.options]
        return mark_safe(  # noqa: S308
            "".join(
                f'<option value="{escape(value)}"{" selected" if value and value == self.value else ""}>{escape(label)}</option>'
                for value, label in options
            )
        )


def asked(request: HttpRequest, *filters: Filter) -> list[Filter]:
    """The filters with the address's values; an unknown option and a zero byte count as absent."""
    found = []
    for one in filters:
        value = request.GET.get(one.name, "").replace("\0", "").strip()[:LONGEST_WORD]
        if one.options and value not in {option for option, _ in one.options}:
            value = ""
        found.append(replace(one, value=value))
    return found


def sort_asked(request: HttpRequest, keys: Sequence[str], default: str) -> str:
    """The address's `key` or `-key` (descending) if the list has that order, else the default."""
    wanted = request.GET.get("sort", "")
    return wanted if wanted.removeprefix("-") in keys else default
