"""What a load section may ask of a stream's responses, which it has only where it states it, so that all others keep their digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from registry.core.schema import Problem

#: {field: whose time it is}
FIELDS = {"ttft_slo_ms": "the first token's", "itl_slo_ms": "the one between tokens"}


def stated(load: Mapping[str, Any]) -> dict[str, Any]:
    """The section without those that it leaves open."""
    return {name: value for name, value in load.items() if name not in FIELDS or value is not None}


def problems_of(load: Mapping[str, Any]) -> Iterator[Problem]:
    """Each stands beside the whole answer's, which no part of it is longer than."""
    for name, whose in FIELDS.items():
        if load.get(name) is not None and load[name] > (load.get("slo_ms") or 0):
            fix = f"State both, {whose} no longer than the whole answer's."
            yield Problem(f"load.{name}", "it stands beside load.slo_ms, and is not within it.", fix)
