"""Errors between a caller and the server, each as a sentence with the next step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: What to try, by status, where the server's own words do not say it.
NEXT_STEPS: dict[str, str] = {
    "401": "Run `sluicegate login`, or set SLUICEGATE_TOKEN.",
    "403": "Ask a team member with one of the roles named above, or an administrator.",
    "404": "Look at `sluicegate model list` and `sluicegate release list MODEL`.",
    "409": "Look at its state now, then decide again.",
    "412": "Somebody changed it meanwhile; look at it again, then repeat the command.",
    "413": "Send a smaller file, or raise SLUICEGATE_MAX_UPLOAD_BYTES on the server.",
    "428": "Repeat the command with the version you looked at.",
    "429": "Wait a moment, then repeat the command.",
    "503": "Look at `sluicegate up`'s output or the server's status page for the part that is down.",
}


class ClientError(Exception):
    """`message` and `next_step` are for people, `facts` for programs."""

    def __init__(self, message: str, *, next_step: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.facts = facts

    def as_json(self) -> dict[str, Any]:
        return {"error": self.message, "next_step": self.next_step, **self.facts}

    def lines(self) -> list[str]:
        """A sentence, then the mistakes field by field, then the next step, without repetition."""
        errors = [_Mistake.of(error) for error in self.facts.get("errors") or []]
        message, shown = self.message, errors
        if len(errors) == 1 and errors[0].message and errors[0].message in message:
            shown = []
            if errors[0].fix not in message:
                message = f"{message} {errors[0].fix}"
        elif len(errors) > 1 and message in (first := (errors[0].message, f"{errors[0].message} {errors[0].fix}")):
            message, shown = first[1], errors[1:]
        elif len(errors) > 1:
            for told in (str(errors[0]), "; ".join(map(_Mistake.brief, errors))):
                message = message.removesuffix(told).rstrip()
        lines = [message, *(f"  {one.brief()}" + (f" Fix: {one.fix}" if one.fix else "") for one in shown)]
        if self.next_step:
            lines.append(f"Next: {self.next_step}")
        return lines


def place_of(mistake: Mapping[str, Any]) -> str:
    """`release.yaml:9:11: serving.inputs[0].name` of a mistake in a release folder, as far as it is known."""
    where = f":{mistake['line']}:{mistake['column']}" if mistake.get("line") else ""
    name = mistake["file"] or "."
    is_file_itself = mistake["field"] in ("", "path", "files", mistake["file"])
    return f"{name}{where}" if is_file_itself else f"{name}{where}: {mistake['field']}"


@dataclass(frozen=True)
class _Mistake:
    """One of the `errors` of a problem."""

    field: str
    message: str
    fix: str
    place: str = ""  # `release.yaml:9:11`, of a mistake in a file

    @classmethod
    def of(cls, error: dict[str, Any]) -> _Mistake:
        field, message, fix = (str(error.get(key, "")).strip() for key in ("field", "message", "fix"))
        return cls(field, message, fix, place_of(error) if "file" in error else "")

    def brief(self) -> str:
        return f"{self.place}: {self.message}" if self.place else f"{self.field}: {self.message}"

    def __str__(self) -> str:
        return f"{self.brief()} {self.fix}"


class Problem(ClientError):
    """The server's problem JSON (RFC 9457)."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        self.status = status
        self.code = str(body.get("code", ""))
        message = str(body.get("detail") or body.get("title") or f"The server answered {status}.")
        facts = {
            key: value
            for key, value in body.items()
            if key not in {"type", "title", "status", "detail", "next_step", "message", "self"}
        }
        # the server's sentences bring their own next step, but for who one is, which only this side knows how to mend
        step = NEXT_STEPS.get(str(status), "") if status == 401 or not body.get("detail") else ""
        step = str(body.get("next_step") or step)
        super().__init__(message, next_step=step, status=status, **facts)


class Expired(Problem):
    """The token ended while it was in use. Finished work stays; the same call with a new token goes on from there."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(status, body)
        self.next_step = (
            "Repeat the command with a new token to resume. If a job outlasts its token, give its rule a longer life, "
            "or get another identity token (docs/identity.md)."
        )


class Mistake(ClientError):
    """A local error: the input is invalid, or changed during the upload."""


def refuse(message: str, next_step: str = "", **facts: Any) -> Mistake:
    """A local check failed before a request."""
    return Mistake(message, next_step=next_step, **facts)


def is_passing(error: BaseException) -> bool:
    """Whether a retry may succeed soon: no answer, or the server or its store is down or busy."""
    if isinstance(error, Problem):
        return error.status >= 500 or error.status in {408, 429} or isinstance(error, Expired)
    return isinstance(error, Unreachable)


class Unreachable(ClientError):
    """No answer, or the connection was lost. The request may have been executed."""

    def __init__(self, url: str, why: str) -> None:
        step = "Start it with `sluicegate up`, or name the right one with --server or SLUICEGATE_URL."
        if "through the proxy" in why:
            step = "Look at the proxy, or except the server from it with NO_PROXY."
        super().__init__(f"No answer from {url}: {why.rstrip('.')}.", next_step=step)


class Untrusted(ClientError):
    """The server's certificate is not trusted here: waiting does not help."""

    def __init__(self, url: str, why: str) -> None:
        missing = [f"{name}={path}" for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if (path := _not_there(name))]
        told = f" There is nothing at {' and '.join(missing)}." if missing else ""
        super().__init__(
            f"The certificate of {url} is not trusted: {why.rstrip('.')}.{told}",
            next_step="Name the file of its CA by --ca-file or SLUICEGATE_CA_FILE, add it to the system's certificates, or "
            "use the name that the certificate is for.",
        )


def _not_there(name: str) -> str:
    """Path in the variable, if no file is there; else empty."""
    path = os.environ.get(name, "")
    return path if path and not os.path.exists(path) else ""


class LostSight(ClientError):
    """It is not known how the run ends: the server lets the caller look no longer. The run goes on. `run` is how it stood."""

    def __init__(self, message: str, *, next_step: str, run: dict[str, Any], **facts: Any) -> None:
        super().__init__(message, next_step=next_step, run=run, **facts)
        self.run = run


class StillRunning(ClientError):
    """The time to wait is over and the run is not: it goes on by itself. `run` is how it stood."""

    def __init__(self, message: str, *, run: dict[str, Any]) -> None:
        super().__init__(message)
        self.run = run
