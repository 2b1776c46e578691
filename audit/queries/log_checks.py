"""When the whole log was last checked, and what was found."""

from __future__ import annotations

from typing import Final

from audit.core.log_check import LogCheck, read_check
from ledger.queries import events

#: The kind of the job.
CHECK: Final = "audit.check_log"


def last_check() -> LogCheck | None:
    """As the newest event of a check tells it; None: the whole was never checked by a worker."""
    told = events().filter(verb="log.checked").order_by("-seq").values_list("seq", "at", "actor", "facts").first()
    return read_check(*told) if told else None
