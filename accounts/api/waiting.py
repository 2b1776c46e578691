"""Shared parts of the addresses that end in `/wait`: their query, and the answer while the wait goes on.

Such a view answers at once: 200 if the awaited change has come, else 202. `sluicegate.front.waits`, in front
of Django, keeps the caller while the answer is 202, so that a waiting caller takes no thread and no database connection.
"""

from __future__ import annotations

from typing import Final

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from ledger.core.errors import field_error

#: The longest that one request may wait, in seconds: below the 60 s after which proxies commonly give up.
MOST_S: Final = 55.0
#: Default seconds to wait.
DEFAULT_S: Final = 30.0
#: Statuses: it has come; it has not, and this is how things stand.
COME, PENDING = 200, 202

TIMEOUT = OpenApiParameter(
    "timeout_s", float, description=f"how long to wait, in seconds: 0 to {MOST_S:g}; {DEFAULT_S:g} without it"
)
VERSION = OpenApiParameter(
    "version", int, description="the version that you saw: the answer also comes as soon as the version changes"
)


def read_timeout(text: str | None) -> float:
    """The seconds to wait that a query names. Raises Invalid unless it is a number from 0 to MOST_S."""
    try:
        timeout_s = DEFAULT_S if text is None else float(text)
    except ValueError:
        timeout_s = -1.0
    if not 0 <= timeout_s <= MOST_S:  # NaN is not either
        raise field_error(
            "timeout_s", f"{text!r} is no time to wait.", f"Name 0 to {MOST_S:g} seconds, and ask again after that."
        )
    return timeout_s


def status_of_wait(request: Request, *, has_ended: bool, version: int) -> int:
    """COME once it has ended, or its version differs from the query's; else PENDING. Raises Invalid."""
    read_timeout(request.query_params.get("timeout_s"))
    seen = request.query_params.get("version")
    if seen is not None and not (seen.isascii() and seen.isdigit() and len(seen) <= 9):
        raise field_error("version", f"{seen!r} is no version.", "Send the `version` of an earlier answer.")
    return COME if has_ended or (seen is not None and int(seen) != version) else PENDING
