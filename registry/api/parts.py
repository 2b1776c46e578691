"""What a signed address of a part lets its holder do: write just those bytes, at just that place, until it ends."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from django.conf import settings

from accounts.api.shapes import Shape
from accounts.core.addresses import API
from ledger.core.errors import NotFound, Refused
from registry.core.uploads import PART_PATH, PartTicket
from registry.storage import FolderStore, Readable, adapter, chunks_of
from registry.storage.folder import PartWriter

#: `UploadMiddleware` takes what fits this; registry/urls.py has the same for servers without it.
PATH = re.compile(f"{API}/{PART_PATH}")


class PartAnswer(Shape):
    number: int
    size_bytes: int
    sha256: str


def ticket_of(upload: str, number: int, query: Mapping[str, str]) -> PartTicket:
    """The ticket that the address carries. Raises Refused unless this installation signed it and it has not ended."""
    try:
        ticket = PartTicket(
            upload, number, int(query["offset"]), int(query["size"]), query["sha256"], int(query["expires"])
        )
        is_ours = ticket.is_signed_by(settings.SECRET_KEY.encode(), query["signature"])
    except (KeyError, ValueError, TypeError):
        is_ours = False
    if not is_ours:
        raise Refused(
            "bad_signature", "The address of this part was changed or not made here. Send to it as it was given."
        )
    if ticket.expires_at_s < time.time():
        raise Refused("address_ended", "The address of this part has ended. Sign the part again, then send it.")
    return ticket


def writer_for(ticket: PartTicket) -> PartWriter:
    """Raises NotFound where parts go elsewhere or the upload is over."""
    keys = adapter()
    if not isinstance(keys, FolderStore):
        raise NotFound("not_here", "Parts are sent to the bucket, not here. Sign the part and use the address given.")
    return keys.part_writer(ticket)


def answer(ticket: PartTicket) -> dict[str, Any]:
    return {"number": ticket.number, "size_bytes": ticket.size_bytes, "sha256": ticket.sha256}


def receive(upload: str, number: int, query: Mapping[str, str], stream: Readable) -> dict[str, Any]:
    """Writes the part from a stream, read in pieces."""
    ticket = ticket_of(upload, number, query)
    writer = writer_for(ticket)
    try:
        if not writer.is_received:
            for chunk in chunks_of(stream):
                writer.write(chunk)
            writer.finish()
    finally:
        writer.close()
    return answer(ticket)
