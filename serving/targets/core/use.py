"""What a server holds and has used, at one instant."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Use:
    """Of all processes that a server is. What could not be read is None, and never 0.

    `memory_bytes` is what would be free without the server. Of that `own_bytes` are no pages of files: what it allocated, and shared
    memory; pages of files come and go with the machine's cache and with neighbours that map the same libraries.
    """

    memory_bytes: int
    own_bytes: int | None = None
    shared_bytes: int | None = None  # shared memory, a part of `own_bytes`
    cpu_s: float | None = None  # since it began, of all cores together
    open_files: int | None = None
    gpu_memory_bytes: int | None = None


@dataclass(frozen=True)
class Reading:
    """What a server used `at_s`, in seconds of the Unix epoch by the clock of its node."""

    at_s: float
    use: Use
