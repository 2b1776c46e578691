"""Where the acts on people and teams are written down.

The log lives in a room above this one, so that room says who writes: the ledger calls `write_with` when Django is ready.
"""

from __future__ import annotations

from typing import Any, Protocol

from accounts.core.access import Actor


class Recorder(Protocol):
    def __call__(
        self, *, verb: str, subject_type: str, subject_id: str | int, actor: Actor, facts: dict[str, Any] | None = None
    ) -> Any: ...


_recorder: Recorder | None = None


def write_with(recorder: Recorder) -> None:
    global _recorder
    _recorder = recorder


def record(*, verb: str, subject_type: str, subject_id: str | int, actor: Actor, **facts: Any) -> None:
    """Appends the event in the caller's transaction. Raises RuntimeError when nobody writes: no act goes unrecorded."""
    if _recorder is None:
        raise RuntimeError("The log of events is not connected; is `ledger` in INSTALLED_APPS?")
    _recorder(verb=verb, subject_type=subject_type, subject_id=subject_id, actor=actor, facts=facts)
