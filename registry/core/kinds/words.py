"""The texts by which servers contradict their own status, and the status that fits."""

from __future__ import annotations

from dataclasses import dataclass

_NOT_FOUND, _FULL, _UNAVAILABLE = 404, 429, 503
_GRPC_INVALID, _GRPC_FULL, _GRPC_INTERNAL, _GRPC_UNAVAILABLE = 3, 8, 13, 14


@dataclass(frozen=True)
class Words:
    """The texts by which one kind of server contradicts its own status. They are compared with the start of a message, `full`
    with all of it."""

    opens: tuple[str, ...] = ()  # what precedes the message in the body of an error
    mistakes: tuple[str, ...] = ()  # 500 or 501 of its front end, before any model saw the request
    no_memory: tuple[str, ...] = ()  # 404: shared memory that the caller did not register
    failures: tuple[str, ...] = ()  # 400, though the model failed
    ran: str = ""  # 400 and INVALID_ARGUMENT of a graph that began to run
    full: str = ""  # 503 and UNAVAILABLE of a full queue
    grpc_mistakes: tuple[tuple[int, str], ...] = ()  # (status, how its message begins)


def meant_status(words: Words, status: int, said: str, *, is_front: bool) -> int:
    """Returns the HTTP status that fits the text of an answer. `said`: the start of its error; `is_front`: it came from the
    server's front end, not from a model."""
    if status == _UNAVAILABLE:
        return _FULL if _is_full(words, said) else status
    if status == _NOT_FOUND:
        return 400 if said.startswith(words.no_memory) else status
    if status == 400:
        return 500 if said.startswith(words.failures) else status
    return 400 if status in (500, 501) and is_front and said.startswith(words.mistakes) else status


def meant_grpc(words: Words, status: int, said: str) -> int:
    """Returns the gRPC status that fits a message."""
    if any(status == of and said.startswith(text) for of, text in words.grpc_mistakes):
        return _GRPC_INVALID
    if status == _GRPC_INVALID and words.ran and said.startswith(words.ran):
        return _GRPC_INTERNAL
    return _GRPC_FULL if status == _GRPC_UNAVAILABLE and _is_full(words, said) else status


def _is_full(words: Words, said: str) -> bool:
    """Whether the server's own queue is full. A model that writes these words stands behind the server's words of a failure."""
    return bool(words.full) and words.full in said and not said.startswith(words.failures)
