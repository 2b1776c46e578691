"""The events of a text model's stream: which hold text, and which end it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Events:
    """Members of the JSON in each event's data.

    Args:
        done: data of the event that ends a whole stream.
        texts: members with text.
        lists: members with a list that counts as text, such as tool calls.
        error: member of an event that reports an error.
        code: member of such an event with its HTTP status.
        busy: statuses of a server that has no capacity for the request.
        reason: member with the reason why a text ended.
        failures: reasons through the server's fault.
    """

    done: str
    texts: tuple[str, ...]
    lists: tuple[str, ...]
    error: str
    code: str
    busy: tuple[int, ...]
    reason: str
    failures: tuple[str, ...]
