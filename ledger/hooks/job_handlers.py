"""Which function runs which kind of job. Each app's `tasks.py` registers its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ledger.models import Job

#: `beat(done=…, total=…, note=…)` reports progress and says whether the job is still ours; after False, stop.
Beat = Callable[..., bool]
Handle = Callable[[Job, Beat], None]
OnFailed = Callable[[Job], None]


class Again(Exception):
    """Raised by a handler that cannot finish yet: run it again in `delay_s` seconds. It costs no attempt."""

    def __init__(self, delay_s: float, why: str) -> None:
        super().__init__(why)
        self.delay_s = delay_s
        self.why = why

    def __str__(self) -> str:
        return f"{self.why} (again in {self.delay_s:g} s)"


@dataclass(frozen=True)
class Registered:
    handle: Handle
    on_failed: OnFailed | None
    records_failure: bool


_REGISTERED: dict[str, Registered] = {}


def handler(
    kind: str, *, on_failed: OnFailed | None = None, records_failure: bool = True
) -> Callable[[Handle], Handle]:
    """Registers the decorated `fn(job, beat)` for a kind of job.

    It may be run more than once for one job (a worker can die after the last effect), so it finds its place by itself.
    `on_failed(job)` is called once no attempt is left, with `job.error` set: tell the owner there.
    Without `records_failure` no `job.failed` event is appended then.
    Raises ValueError when another function has the kind already.
    """

    def register(handle: Handle) -> Handle:
        known = _REGISTERED.get(kind)
        if known and known.handle.__qualname__ != handle.__qualname__:
            raise ValueError(f"two handlers for jobs of kind {kind!r}: {known.handle} and {handle}")
        _REGISTERED[kind] = Registered(handle, on_failed, records_failure)
        return handle

    return register


def registered(kind: str) -> Registered | None:
    return _REGISTERED.get(kind)


def kinds() -> list[str]:
    return sorted(_REGISTERED)
