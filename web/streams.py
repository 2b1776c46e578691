"""Answers of many lines, sent as they are made, without holding all of them and without holding up the event loop."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Generator, Iterable
from itertools import islice
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

_KINDS = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl"}
#: Lines that are made, and sent, at once.
AT_ONCE = 200


async def in_threads(lines: Generator[bytes]) -> AsyncIterator[bytes]:
    """The generator's items, as an ASGI server consumes them; closed also if the caller leaves."""

    def some() -> list[bytes]:
        return list(islice(lines, AT_ONCE))

    try:
        while found := await sync_to_async(some)():
            yield b"".join(found)
    finally:
        await sync_to_async(lines.close)()


def download(request: HttpRequest, lines: Generator[bytes], name: str, kind: str) -> StreamingHttpResponse:
    """The lines as a file `name.kind`; `kind` is csv or jsonl."""
    content = in_threads(lines) if isinstance(request, ASGIRequest) else lines
    answer = StreamingHttpResponse(content, content_type=_KINDS[kind])
    answer["Content-Disposition"] = f'attachment; filename="{name}.{kind}"'
    return answer


def csv_line(cells: Iterable[Any]) -> bytes:
    """A row of CSV. A text that a spreadsheet would run as a formula begins with an apostrophe. Source: OWASP, CSV injection."""
    written = io.StringIO()
    csv.writer(written).writerow(map(_safe, cells))
    return written.getvalue().encode()


def _safe(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
