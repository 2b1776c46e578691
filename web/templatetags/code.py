"""Template tags for text that people or releases wrote: what hides in it is shown."""

from __future__ import annotations

from django import template
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from web.code.lines import html_of

register = template.Library()


@register.filter
def seen(text: str) -> SafeString:
    """Text of many lines, escaped, with its hidden characters boxed and long lines folded. Line ends stay as they are."""
    return format_html_join("\n", "{}", ((html_of(line),) for line in str(text).replace("\r\n", "\n").split("\n")))
