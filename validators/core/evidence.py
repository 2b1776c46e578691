"""Evidence as JSON that every store keeps exactly, and the result of a report that holds a field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """The same value of dicts, lists, text, whole numbers and finite floats; a number that is not finite becomes its name."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return str(value).replace("\x00", "")  # PostgreSQL's jsonb cannot hold it
    return value


def result_with(report: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """The first result of a report's body whose evidence has the field, with `evidence`; empty if none has it."""
    return next((one for one in report.get("gates") or () if field in (one.get("evidence") or {})), {"evidence": {}})
