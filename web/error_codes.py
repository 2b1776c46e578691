"""What every stable code of an error means and what to do next: the table of docs/errors.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django.conf import settings

_ROW = re.compile(r"^\| `([a-z0-9_]+)` \| (.+?) \| (.+?) \|$", re.M)


@dataclass(frozen=True)
class ErrorCode:
    """`means` and `next_step` are sentences in Markdown with nothing but `code` in it."""

    code: str
    means: str
    next_step: str


@cache
def error_codes() -> dict[str, ErrorCode]:
    """Every code of the table, by itself, in the order of their names."""
    text = (Path(settings.BASE_DIR) / "docs" / "errors.md").read_text()
    return {code: ErrorCode(code, means, next_step) for code, means, next_step in _ROW.findall(text)}
