"""Django's `{% url %}`, remembered: a list of a hundred rows writes hundreds of addresses, and the same ones at each request."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django import template
from django.template.base import Parser, Token
from django.template.context import Context
from django.template.defaulttags import URLNode
from django.template.defaulttags import url as url_of_django
from django.urls import reverse
from django.utils.html import escape
from django.utils.safestring import SafeString

register = template.Library()


@lru_cache(maxsize=8192, typed=True)
def _written(name: str, *values: Any) -> SafeString:
    return escape(reverse(name, args=values))


class _Url(URLNode):
    """A tag with values by position, whose result is written in place. The others are left to Django."""

    def render(self, context: Context) -> str:
        return _written(self.view_name.resolve(context), *(value.resolve(context) for value in self.args))


@register.tag
def url(parser: Parser, token: Token) -> URLNode:
    node = url_of_django(parser, token)
    is_plain = not node.kwargs and node.asvar is None
    return _Url(node.view_name, node.args, node.kwargs, node.asvar) if is_plain else node
