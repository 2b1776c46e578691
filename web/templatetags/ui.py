"""Template tags: states with icons, instants, digests, numbers."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django import template
from django.template.context import Context
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from accounts.core.quantities import UNKNOWN, duration_text, share_text, size_text, weight_text

register = template.Library()
register.filter("percent", weight_text)
register.filter("share", share_text)
register.filter("span", duration_text)
register.filter("size", size_text)

#: word → (kind of colour, icon). Every state and verdict that a page may show; an unknown word is shown plainly.
WORDS: dict[str, tuple[str, str]] = {
    "passed": ("ok", "✓"),
    "failed": ("bad", "✕"),
    "undecided": ("waiting", "?"),
    "errored": ("bad", "!"),
    "skipped": ("idle", "–"),
    "queued": ("waiting", "…"),
    "running": ("running", "▸"),
    "finished": ("idle", "■"),
    "cancelled": ("idle", "–"),
    "draft": ("idle", "…"),
    "sealed": ("ok", "■"),
    "retired": ("idle", "–"),
    "fetching": ("running", "▸"),
    "loading": ("running", "▸"),
    "warming": ("running", "▸"),
    "ready": ("ok", "✓"),
    "draining": ("waiting", "▾"),
    "gone": ("idle", "–"),
    "awaiting_approval": ("waiting", "?"),
    "preparing": ("running", "▸"),
    "shadowing": ("running", "▸"),
    "shifting": ("running", "▸"),
    "paused": ("waiting", "‖"),
    "baking": ("running", "▸"),
    "promoted": ("ok", "✓"),
    "rolling_back": ("bad", "◂"),
    "rolled_back": ("bad", "◂"),
    "reverted": ("bad", "◂"),
    "ended": ("waiting", "■"),
    "stuck": ("bad", "!"),
    "rejected": ("idle", "–"),
    "superseded": ("idle", "–"),
    "worse": ("bad", "✕"),
    "over_the_limit": ("bad", "✕"),
    "fine": ("ok", "✓"),
    "on": ("ok", "✓"),
    "off": ("idle", "–"),
    "pending": ("waiting", "…"),
    "delivered": ("ok", "✓"),
    "gave_up": ("bad", "!"),
}


@register.simple_tag
def word(name: str) -> SafeString:
    """A state or verdict as icon, word and colour."""
    kind, icon = WORDS.get(name, ("idle", "·"))
    return format_html(
        '<span class="word {}"><span aria-hidden="true">{}</span> {}</span>',
        kind,
        icon,
        name.replace("_", " ") or "not judged yet",
    )


@register.simple_tag
def no_default() -> SafeString:
    """First in a form whose buttons must be pressed themselves: the Enter key in a field sends what the form's first button
    sends, and where that one cannot be pressed, nothing."""
    return mark_safe('<button disabled hidden aria-hidden="true"></button>')


@register.simple_tag
def instant(at: datetime | str | None) -> SafeString | str:
    """An instant, relative, with the absolute UTC time on hover and focus."""
    if not at:
        return UNKNOWN
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return format_html(
        '<time datetime="{0}" title="{1}">{2}</time>',
        moment.isoformat(),
        moment.strftime("%Y-%m-%d %H:%M:%S UTC"),
        ago(moment, timezone.now()),
    )


@register.simple_tag
def took(begun: datetime | None, ended: datetime | None) -> str:
    """How long something lasted, in seconds with one decimal; nothing while it goes on."""
    return f"{(ended - begun).total_seconds():.1f} s" if begun and ended else ""


def ago(moment: datetime, now: datetime) -> str:
    """`12 s ago`, `3 min ago`, `in 40 s`: the distance in its largest whole unit."""
    seconds = int((now - moment).total_seconds())
    size = abs(seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if size >= length:
            text = f"{size // length} {unit}"
            break
    else:
        text = f"{size} s"
    return f"{text} ago" if seconds >= 0 else f"in {text}"


@register.filter
def short(digest: str | None) -> SafeString | str:
    """A digest shortened in the middle; the whole of it on hover."""
    if not digest:
        return UNKNOWN
    name, _, hexes = digest.rpartition(":")
    return format_html(
        '<span class="digest" title="{}">{}{}…{}</span>', digest, f"{name}:" if name else "", hexes[:8], hexes[-4:]
    )


@register.simple_tag
def weight_bar(weight_bp: int, candidate: str) -> SafeString:
    """The candidate's share of the traffic (basis points) as a striped bar. Drawn, as the pages carry no inline style."""
    return format_html(
        '<svg class="bar" role="img" width="100%" height="20" aria-label="{} of the traffic goes to {}">'
        '<pattern id="stripes" width="12" height="12" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect class="candidate" width="12" height="12"/><rect class="gap" width="6" height="12"/></pattern>'
        '<rect class="stable" width="100%" height="20"/><rect fill="url(#stripes)" width="{}%" height="20"/></svg>',
        weight_text(weight_bp),
        candidate,
        f"{weight_bp / 100:g}",
    )


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
def pretty(value: Any) -> str:
    """JSON for reading."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


@register.simple_tag(takes_context=True)
def nav(context: Context, name: str, label: str) -> SafeString:
    """One entry of the main navigation; the current one says so."""
    url = reverse(name)
    path = context["request"].path
    current = path == url or (url != "/" and path.startswith(url))
    return format_html('<a href="{}"{}>{}</a>', url, mark_safe(' aria-current="page"') if current else "", label)
