"""Template tags for gate runs."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils import timezone

from accounts.core.quantities import quantity_text, share_text
from validators.core.gates.gate import FACTS
from validators.models import GateResult
from web.progress import left_of

register = template.Library()


@register.filter
def left(result: GateResult) -> str:
    """Remaining time of a running gate, in words; empty if unknown."""
    return left_of(result, timezone.now())


@register.filter
def both_wrong(result: GateResult) -> int:
    """Golden items that neither release answered rightly."""
    paired = result.evidence["paired"]
    return int(paired["n"]) - int(paired["both_right"]) - int(paired["won"]) - int(paired["lost"])


@register.filter
def off(distance: float | str) -> str:
    """How far off an answer is, in three figures; evidence holds a value that is not finite by its name."""
    return "no answer, or another shape" if isinstance(distance, str) else f"{distance:.3g}"


register.filter("share", share_text)


@register.filter
def mib(size: int | None, otherwise: str = "unknown") -> str:
    """Bytes as MiB."""
    if size is None:
        return otherwise
    return f"{size / 2**20:.0f} MiB" if size >= 2**30 else f"{size / 2**20:.4g} MiB"


@register.filter
def unstated(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of an envelope that are neither declared nor measured."""
    return [row for row in rows if row["declared"] is None and row["measured"] is None]


register.filter("quantity", quantity_text)


@register.filter
def in_stages(stages: dict[str, float]) -> str:
    """Parts of a request's time on the server, in words and ms, as `8.1 ms: 2 waiting, 6 in the model`."""
    names = {
        "queue_ms": "waiting",
        "input_ms": "taking in",
        "infer_ms": "in the model",
        "output_ms": "giving out",
        "overhead_ms": "elsewhere",
    }
    parts = [
        f"{stages[name]:.3g} {words}" for name, words in names.items() if stages[name] >= 0.005 * stages["total_ms"]
    ]
    return f"{stages['total_ms']:.3g} ms: {', '.join(parts)}"


@register.filter
def place(measured: dict[str, str | None]) -> str:
    """The machine of a gate, in words, as `node b: CPU EPYC, CPU count 16, GPU unknown`."""
    told = ", ".join(f"{words} {measured.get(fact) or 'unknown'}" for fact, words in FACTS.items() if fact != "image")
    return f"node {measured['node']}: {told}"
