"""Export of a search of the log: JSON lines or CSV, read and sent in pieces."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, StreamingHttpResponse

from audit.api.events import EventSerializer
from audit.queries.event_search import Found
from ledger.models import Event
from web.pages.audit import found_in, given_in
from web.streams import AT_ONCE, csv_line, download

COLUMNS: Final = (
    "seq", "at", "verb", "subject_type", "subject_id", "model", "actor", "from_state", "to_state", "reason", "facts", "act_id",
    "prev_hash", "hash",
)  # fmt: skip


@login_required
def export(request: HttpRequest, form: str) -> StreamingHttpResponse:
    """All results of the page's filters, newest first. Raises Invalid for a malformed time."""
    _, found = found_in(request, given_in(request))
    return download(request, (_csv_of if form == "csv" else _json_lines_of)(found), "sluicegate-events", form)


def _rows(found: Found) -> Iterator[Event]:
    """Rows, newest first. Each read fills one piece of the answer."""
    rows = list(found.events.order_by("-seq")[:AT_ONCE])
    while rows:
        yield from rows
        rows = list(found.events.filter(seq__lt=rows[-1].seq).order_by("-seq")[:AT_ONCE])


def _json_lines_of(found: Found) -> Generator[bytes]:
    for row in _rows(found):
        yield f"{json.dumps(EventSerializer(row).data, ensure_ascii=False, default=str)}\n".encode()


def _csv_of(found: Found) -> Generator[bytes]:
    yield csv_line(COLUMNS)
    for row in _rows(found):
        yield csv_line(_cell(getattr(row, name)) for name in COLUMNS)


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return value.isoformat() if hasattr(value, "isoformat") else value
