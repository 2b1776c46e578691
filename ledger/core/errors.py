"""The one error family that every app raises and every front door renders.

The API turns a DomainError into problem JSON (RFC 9457), the pages into a sentence and a next step.
`code` is stable and documented; `message` is for people; `facts` are machine-readable details.
"""

from __future__ import annotations

from typing import Any, ClassVar


class DomainError(Exception):
    """Something the domain refuses. `status` is the HTTP status a front door answers with."""

    status: ClassVar[int] = 400

    def __init__(self, code: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.code, self.message, self.facts)


def _again(kind: type[DomainError], code: str, message: str, facts: dict[str, Any]) -> DomainError:
    """The error of another process."""
    return kind(code, message, **facts)


class Refused(DomainError):
    """The actor may not do this."""

    status = 403


class NotFound(DomainError):
    """There is no such thing, or the actor may not know of it."""

    status = 404


class StateChanged(DomainError):
    """The thing is no longer in the state that this verb needs."""

    status = 409


class Stale(DomainError):
    """The caller's `If-Match` version is not the current one."""

    status = 412


class Invalid(DomainError):
    """The input is wrong. `facts["errors"]` lists {field, message, fix} where several are known."""

    status = 422


class PreconditionRequired(DomainError):
    """A verb that changes state came without `If-Match`."""

    status = 428


class Throttled(DomainError):
    """Too many tries. `facts["retry_after_s"]`: whole seconds until the next one is taken."""

    status = 429


class Unavailable(DomainError):
    """An outside system needed for this does not answer."""

    status = 503


def field_error(field: str, message: str, fix: str) -> Invalid:
    """The refusal of one field."""
    return Invalid("invalid", f"{message} {fix}", errors=[{"field": field, "message": message, "fix": fix}])
