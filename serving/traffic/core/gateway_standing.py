"""How a gateway stands: whether users may be sent to it."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

#: Seconds. A gateway that did not speak to a control plane for so long is not waited for.
SEEN_WITHIN_S = 10.0
#: Seconds. One that did not speak to a control plane for so long is taken for gone: the others get its share of in-flight bounds. Longer
#: than a restart: a bound that changes makes every gateway build its clusters anew.
GONE_AFTER_S = 600.0


class Standing(StrEnum):
    """One that is drained and silent is silent: it is drained to be stopped."""

    READY = "ready"
    DRAINED = "drained"
    SILENT = "silent"
    NEVER_SEEN = "never_seen"


def is_gone(seen_at: datetime | None, now: datetime) -> bool:
    """Whether a gateway that was last heard of at this instant is taken for gone; one that never was serves nobody."""
    return seen_at is None or now - seen_at > timedelta(seconds=GONE_AFTER_S)


def is_out_of_use(seen_at: datetime | None, drained_at: datetime | None, now: datetime) -> bool:
    """Whether one that does not tell what it counts is taken for serving nobody: it never served, or is drained and gone. Any other may
    route users by the last that it heard, with nobody here to see it."""
    return seen_at is None or (drained_at is not None and is_gone(seen_at, now))


def standing_of(seen_at: datetime | None, drained_at: datetime | None, now: datetime) -> Standing:
    """How a gateway stands that was last heard of, and is drained since, these instants."""
    if seen_at is None:
        return Standing.NEVER_SEEN
    if now - seen_at > timedelta(seconds=SEEN_WITHIN_S):
        return Standing.SILENT
    return Standing.READY if drained_at is None else Standing.DRAINED
