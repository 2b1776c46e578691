"""Template tags of the parts that pages are put together from: states, instants, digests, numbers, bars."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from django import template
from django.template.context import Context
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from accounts.core.quantities import UNKNOWN, duration_text, share_text, size_text, weight_text
from web.gauge import gauge, number_text
from web.words import KINDS, look_of

register = template.Library()
#: A number, the space after it and its unit, which stay on one line.
_QUANTITY = re.compile(r"(?<=\d) (?=(?:%|ms|s|min|h|d|B|KiB|MiB|GiB|TiB|bp)(?![\w/]))")


@register.filter
def units(text: object) -> str:
    """A sentence in which no number is parted from its unit at the end of a line."""
    return _QUANTITY.sub("\u00a0", str(text))


@register.filter
def guard_words(name: str) -> str:
    """A counter of a guard as people call it: `slow_250ms` is `slow (over 250 ms)`."""
    return units(re.sub(r"^slow_([0-9.]+)ms$", r"slow (over \1 ms)", name).replace("_", " "))


@register.filter
def utc(at: str | None) -> str:
    """An instant of ISO 8601 as a date and a time, for readers without a script; UNKNOWN for None."""
    return f"{datetime.fromisoformat(at).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if at else UNKNOWN


@register.filter
def figures(value: float, unit: str) -> str:
    """A measured number in three figures with its unit, so that numbers beneath each other compare: `21.0 ms`, `0.420 s`."""
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{decimals}f}\u00a0{unit}"


def _in_words(words: Callable[[Any], str]) -> Callable[[Any], str]:
    """A quantity in words as a filter."""
    return lambda value: units(words(value))


register.filter("percent", _in_words(weight_text))
register.filter("share", _in_words(share_text))
register.filter("span", _in_words(duration_text))
register.filter("size", _in_words(size_text))


@register.filter
def number(value: float | None, unit: str = "") -> str:
    """See `web.gauge.number_text`."""
    return units(number_text(value, unit))


@register.simple_tag
def icon(name: str, label: str = "") -> SafeString:
    """One icon of the sprite; hidden from screen readers unless it stands alone with a `label`."""
    return _drawn(name, label, static("web/icons.svg"))


@lru_cache(maxsize=512)
def _drawn(name: str, label: str, sprite: str) -> SafeString:
    said = format_html('role="img" aria-label="{}"', label) if label else mark_safe('aria-hidden="true"')
    return format_html('<svg class="icon" {}><use href="{}#{}"/></svg>', said, sprite, name)


@register.simple_tag(takes_context=True)
def word(context: Context, name: str, since: datetime | None = None, as_it_is: bool = False) -> SafeString:
    """A state or verdict as icon, word and colour, and since when it is so.

    A page that shows an outage sets `no_green`: good words of the past, such as “promoted”, then have no colour. `as_it_is` keeps
    the colour of a word that states the present.
    """
    said = _word(name, static("web/icons.svg"), is_plain=bool(context.get("no_green")) and not as_it_is)
    return format_html('{} <span class="since">{}</span>', said, instant(since, lasts=True)) if since else said


@lru_cache(maxsize=512)
def _word(name: str, sprite: str, *, is_plain: bool = False) -> SafeString:
    kind, drawn = look_of(name)
    kind = "idle" if is_plain and kind == "ok" else kind
    said = (name or "").replace("_", " ") or "not judged yet"
    return format_html('<span class="word {}">{} {}</span>', kind, _drawn(drawn, "", sprite), said)


@register.simple_tag
def no_default() -> SafeString:
    """First in a form whose buttons need a click: the Enter key in a field presses the form's first button,
    which is disabled here."""
    return mark_safe('<button disabled hidden aria-hidden="true"></button>')


@register.simple_tag
def instant(at: datetime | str | None, lasts: bool = False) -> SafeString | str:
    """An instant, relative; the absolute UTC time under a pointer, and below it once a key or a finger has brought the focus.

    `lasts`: what began then still is so, which reads `for 12 s`.
    """
    if not at:
        return UNKNOWN
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    absolute = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    # Digits and our own words: escaping them takes longer than all else of an instant, and lists are full of them.
    kind = ' class="lasts"' if lasts else ""
    told = ago(moment, timezone.now(), lasts=lasts)
    return mark_safe(  # noqa: S308
        f'<time{kind} datetime="{moment.isoformat()}" title="{absolute}" tabindex="0">'
        f'<span class="ago">{told}</span><span class="at">{absolute}</span></time>'
    )


@register.simple_tag
def took(begun: datetime | None, ended: datetime | None) -> str:
    """How long something lasted: seconds with one decimal, from two minutes on in larger units; nothing while it goes on."""
    if not begun or not ended:
        return ""
    seconds = (ended - begun).total_seconds()
    return units(f"{seconds:.1f} s" if seconds < 120 else duration_text(seconds))


def ago(moment: datetime, now: datetime, *, lasts: bool = False) -> str:
    """`12 s ago`, `3 min ago`, `in 40 s`, or `for 12 s` of what lasts: the distance in its largest whole unit."""
    seconds = int((now - moment).total_seconds())
    size = abs(seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if size >= length:
            text = f"{size // length} {unit}"
            break
    else:
        text = f"{size} s"
    return f"in {text}" if seconds < 0 else f"for {text}" if lasts else f"{text} ago"


@register.filter
def short(digest: str | None) -> SafeString | str:
    """A digest shortened in the middle; the whole of it on hover. Where people copy it, `digest` is the better one."""
    if not digest:
        return UNKNOWN
    head, middle, tail = _digest_parts(digest)
    between = "…" if middle else ""
    return format_html('<span class="digest" title="{}">{}{}{}</span>', digest, head, between, tail)


@register.simple_tag
def digest(value: str | None, label: str = "digest") -> SafeString | str:
    """A digest as a chip with a button that copies it. All of it is in the page: selecting the chip selects it whole."""
    if not value:
        return UNKNOWN
    head, middle, tail = _digest_parts(value)
    return format_html(
        '<span class="chip"><code class="digest" title="{0}"><span>{1}</span><span class="middle">{2}</span>'
        '<span>{3}</span></code><button type="button" class="icon-only needs-script" data-copy="{0}" '
        'aria-label="Copy the {4} {1}…{3}">{5}</button></span>',
        value,
        head,
        middle,
        tail,
        label,
        icon("copy"),
    )


def _digest_parts(value: str) -> tuple[str, str, str]:
    """Algorithm and eight digits, the middle, the last four. A short value is its own head."""
    name, _, hexes = value.rpartition(":")
    if len(hexes) <= 16:
        return value, "", ""
    return f"{name}:{hexes[:8]}" if name else hexes[:8], hexes[8:-4], hexes[-4:]


@register.simple_tag
def weight_bar(weight_bp: int, candidate: str, height: int = 20) -> SafeString:
    """The candidate's share of the traffic (basis points) as a striped bar. Drawn, as the pages carry no inline style."""
    return format_html(
        '<svg class="bar" role="img" width="100%" height="{3}" aria-label="{0} of the traffic goes to {1}">'
        '<pattern id="stripes-{4}" width="12" height="12" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect class="candidate" width="12" height="12"/><rect class="gap" width="6" height="12"/></pattern>'
        '<rect class="stable" width="100%" height="{3}"/><rect fill="url(#stripes-{4})" width="{2}%" height="{3}"/></svg>',
        weight_text(weight_bp),
        candidate,
        f"{weight_bp / 100:g}",
        height,
        weight_bp,
    )


@register.simple_tag
def meter(
    value: float | None, limit: float | None, label: str = "", unit: str = "", at_least: bool = False
) -> SafeString:
    """A number against the most (or the least) that it may be: bar, line at the limit, and both in words."""
    beyond = "under the limit" if at_least else "over the limit"
    found = gauge(value, limit, unit=unit, at_least=at_least)
    line = (
        format_html('<line class="limit" x1="{0}" x2="{0}" y1="0" y2="10"/>', found.limit_pct)
        if found.limit_pct is not None
        else ""
    )
    return format_html(
        '<span class="meter {0}"><svg role="img" viewBox="0 0 100 10" preserveAspectRatio="none" aria-label="{1}{2}{6}">'
        '<rect class="fill" width="{3}" height="10"/>{4}</svg><span class="number">{5}{2}</span></span>',
        found.kind,
        f"{label}: " if label else "",
        found.said,
        found.fill_pct,
        line,
        format_html("{} ", icon("cross", beyond)) if found.kind == "bad" else "",
        {"bad": ", not within it", "idle": ", not judged"}.get(found.kind, ""),
    )


@register.filter
def icon_of(kind: str) -> str:
    """The icon of a kind (`ok`, `bad` …) or of a state's word."""
    return KINDS.get(kind) or look_of(kind)[1]


@register.filter
def kind_of(name: str) -> str:
    """The colour's kind of a state's word; a kind is its own."""
    return name if name in KINDS else look_of(name)[0]


#: The sign before a tab's title by kind; `web/live.js` has the same.
_TITLE_MARKS = {"running": "▸", "waiting": "‖", "bad": "✕", "ok": "✓", "idle": "■"}


@register.filter
def title_mark(kind: str) -> str:
    """The sign of a kind before the title of a browser's tab."""
    return _TITLE_MARKS[kind]


@register.filter
def spaced(name: str) -> str:
    """A state as people write it."""
    return name.replace("_", " ")


@register.filter
def parts(timings: dict[str, float]) -> str:
    """Seconds by part, as `fetch 0.62 s, load 1 s`; nothing measured → `–`."""
    return (
        ", ".join(f"{name.removesuffix('_s')} {duration_text(seconds)}" for name, seconds in sorted(timings.items()))
        or UNKNOWN
    )


@register.filter
def inline(value: Any) -> str:
    """A value within a line: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


@register.filter
def in_code(sentence: str) -> SafeString:
    """A sentence, with words between back quotes as code."""
    pieces = enumerate(sentence.split("`"))
    return format_html_join("", "{}", ((format_html("<code>{}</code>", one) if i % 2 else one,) for i, one in pieces))


@register.filter
def pretty(value: Any) -> str:
    """JSON for reading."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)
