"""Template tags of what stands around every page: navigation, and lists' sorting."""

from __future__ import annotations

from django import template
from django.template.context import Context
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from web.templatetags.ui import icon

register = template.Library()


@register.simple_tag(takes_context=True)
def nav(
    context: Context, name: str, label: str, count: int | None = None, key: str = "", says: str = "", also: str = ""
) -> SafeString | str:
    """One entry of the main navigation, with its count of waiting items; the current entry is marked. `key`: the letter after
    `g`. `says`: the counted trouble, which makes the number red. `also`: addresses that begin so belong to
    it too. Nothing while no such page exists."""
    try:
        url = reverse(name)
    except NoReverseMatch:
        return ""
    request = context.get("request")
    path = context.get("nav_path") or (request.path if request is not None else "")
    current = path == url or (url != "/" and path.startswith(url)) or bool(also and path.startswith(also))
    badge = format_html(' <span class="badge">{}</span>', count) if count else ""
    if count and says:
        badge = format_html(
            ' <span class="badge bad" title="{0} {1}">{0}<span class="unseen"> {1}</span></span>', count, says
        )
    key_said = format_html(' data-key="{0}" aria-keyshortcuts="g {0}"', key) if key else ""
    return format_html(
        '<a href="{}"{}{}>{}{}</a>', url, key_said, mark_safe(' aria-current="page"') if current else "", label, badge
    )


@register.simple_tag(takes_context=True)
def sort_head(context: Context, key: str, label: str, *, is_number: bool = False) -> SafeString:
    """A column's head that sorts by `?sort=key`, and the other way round (`-key`) when pressed again; the page number goes."""
    request = context["request"]
    now = context.get("sort") or request.GET.get("sort", "")
    asked = request.GET.copy()
    asked.pop("page", None)
    asked["sort"] = f"-{key}" if now == key else key
    order = {key: "ascending", f"-{key}": "descending"}.get(now)
    return format_html(
        '<th scope="col"{}{}><a href="?{}">{}{}</a></th>',
        mark_safe(' class="num"') if is_number else "",
        format_html(' aria-sort="{}"', order) if order else "",
        asked.urlencode(),
        label,
        format_html(" {}", icon("up" if order == "ascending" else "down")) if order else "",
    )
