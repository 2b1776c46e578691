"""What every port's errors have in common."""

from __future__ import annotations


class PortError(Exception):
    """An outside system did not do what was asked. `reason` is one of the class's REASONS, stable for code."""

    REASONS: frozenset[str] = frozenset()

    def __init__(self, reason: str, message: str) -> None:
        message = message.replace("\x00", "")  # PostgreSQL stores no NUL, and the other side may send one
        super().__init__(message)
        self.reason = reason
        self.message = message
