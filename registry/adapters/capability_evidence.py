"""The evidence of capabilities that this package ships; `make capabilities` writes it."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from registry.core.capabilities import table

FILE = "capabilities.json"


@cache
def capabilities() -> list[dict[str, Any]]:
    """Rows of the table of capabilities, as `registry.core.capabilities.table` describes them."""
    return table(json.loads(files("registry.adapters").joinpath(FILE).read_text(encoding="utf-8")))
