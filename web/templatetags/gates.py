"""Template tags for gate runs."""

from __future__ import annotations

from django import template
from django.utils import timezone

from validators.models import GateResult
from web.progress import left_of

register = template.Library()


@register.filter
def left(result: GateResult) -> str:
    """How long a running gate will take yet, in words; empty where that cannot be told."""
    return left_of(result, timezone.now())


@register.filter
def both_wrong(result: GateResult) -> int:
    """Golden items that neither release answered rightly."""
    paired = result.evidence["paired"]
    return int(paired["n"]) - int(paired["both_right"]) - int(paired["won"]) - int(paired["lost"])
