"""Time and result of the last check of the whole log."""

from __future__ import annotations

from typing import Final

from audit.core.log_check import LogCheck, read_check
from ledger.queries import events

#: The kind of the job.
CHECK: Final = "audit.check_log"


def last_check() -> LogCheck | None:
    """From the newest event of a check; None if no worker ever checked the whole log."""
    told = events().filter(verb="log.checked").order_by("-seq").values_list("seq", "at", "actor", "facts").first()
    return read_check(*told) if told else None
