"""What a search of the log finds, to be taken away: JSON lines or CSV, read and sent bit by bit."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_required
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

from audit.api.events import EventSerializer
from audit.queries.event_search import Found
from ledger.models import Event
from web.pages.audit import found_in, given_in

#: Events that one read takes: so much is in memory at once, however long the export.
READ_AT_ONCE = 200
COLUMNS = ("seq", "at", "verb", "subject_type", "subject_id", "model", "actor", "from_state", "to_state", "reason", "facts",
           "act_id", "prev_hash", "hash")  # fmt: skip


@login_required
def export(request: HttpRequest, form: str) -> StreamingHttpResponse:
    """What the page's filters find, all of it, the newest first. Raises Invalid for a time that is none."""
    _, found = found_in(request, given_in(request))
    write = _csv_of if form == "csv" else _json_lines_of
    content = _later(found, write) if isinstance(request, ASGIRequest) else _pieces(found, write)
    kinds = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl"}
    answer = StreamingHttpResponse(content, content_type=kinds[form])
    answer["Content-Disposition"] = f'attachment; filename="sluicegate-events.{form}"'
    return answer


_Write = Callable[[list[Event], bool], bytes]


def _read(found: Found, before: int | None) -> list[Event]:
    rows = found.events if before is None else found.events.filter(seq__lt=before)
    return list(rows.order_by("-seq")[:READ_AT_ONCE])


def _piece(found: Found, write: _Write, before: int | None) -> tuple[list[Event], bytes]:
    """The next rows, and what is sent of them; writing them takes as long as reading them, and is for a thread, too."""
    rows = _read(found, before)
    return rows, write(rows, before is None)


def _pieces(found: Found, write: _Write) -> Iterator[bytes]:
    rows, piece = _piece(found, write, None)
    yield piece
    while rows:
        rows, piece = _piece(found, write, rows[-1].seq)
        yield piece


async def _later(found: Found, write: _Write) -> AsyncIterator[bytes]:
    """As `_pieces`, in the way that an ASGI server consumes without holding all of it."""
    rows, piece = await sync_to_async(_piece)(found, write, None)
    yield piece
    while rows:
        rows, piece = await sync_to_async(_piece)(found, write, rows[-1].seq)
        yield piece


def _json_lines_of(rows: list[Event], is_first: bool) -> bytes:
    told = (json.dumps(EventSerializer(row).data, ensure_ascii=False, default=str) for row in rows)
    return "".join(f"{line}\n" for line in told).encode()


def _csv_of(rows: list[Event], is_first: bool) -> bytes:
    text = io.StringIO()
    table = csv.writer(text)
    if is_first:
        table.writerow(COLUMNS)
    table.writerows([_cell(getattr(row, name)) for name in COLUMNS] for row in rows)
    return text.getvalue().encode()


def _cell(value: Any) -> str:
    """The value as a spreadsheet shows it; what would be a formula there is text. Source: OWASP, CSV injection."""
    if isinstance(value, datetime):
        return value.isoformat()
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else "" if value is None else str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
