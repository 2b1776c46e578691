"""What goes over a stream, as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

A hint is a message with the topics that changed and, where events changed them, the last one's number as the message's id. It
tells which fragments to fetch again, by their ordinary addresses, which ask the access table. Besides hints there are:

| event | data | what a page does |
|---|---|---|
| reset | | fetch every live fragment again: hints may have been missed |
| beat | | nothing: the stream lives, and the log was read lately |
| bye | why (`Why`) | load itself anew, and come no further |
"""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import StrEnum


class Why(StrEnum):
    """Reason of a stream's end."""

    EXPIRED = "expired"  # the session came to its own end
    ENDED = "ended"  # signed out, or a person ended the session
    CREDENTIALS = "credentials"  # another password
    DEACTIVATED = "deactivated"
    ROLES = "roles"  # the person lost a permission to read


def hint(topics: Collection[str], seq: int | None = None) -> bytes:
    """These topics changed; with the event's number, from which a stream can be taken up again."""
    return _message(json.dumps(list(topics), separators=(",", ":")), seq=seq)


def reset(seq: int) -> bytes:
    """Anything may have changed; the stream goes on from this number."""
    return _message(event="reset", seq=seq)


def beat(seq: int) -> bytes:
    """Nothing that concerns the reader, up to this number."""
    return _message(event="beat", seq=seq)


def bye(why: Why) -> bytes:
    return _message(why, event="bye")


def _message(data: str = "", *, event: str = "", seq: int | None = None) -> bytes:
    lines = [f"id: {seq}"] * (seq is not None) + [f"event: {event}"] * bool(event)
    return "\n".join([*lines, f"data: {data}", "", ""]).encode()
