"""Markup as a browser reads it, whatever lines a template is written in."""

from __future__ import annotations

import re


def squeezed(html: str) -> str:
    """White space as one space, and none between two tags."""
    return re.sub(r">\s+<", "><", re.sub(r"\s+", " ", html))
