"""The answer to callers of a model that has no loaded server."""

from __future__ import annotations

from dataclasses import dataclass

#: When a caller of a model whose first release is being prepared is to ask again, in seconds: to load takes some.
PREPARING_AGAIN_S = 10


@dataclass(frozen=True)
class Asleep:
    """What callers of a model are told that has no server loaded. `retry_after_s`: it answers then; None: no request wakes it.
    `is_preparing`: it does not sleep; no release of it had traffic here yet. `is_loaded`: one is loaded; else one is being loaded or,
    without `retry_after_s`, did not load.
    """

    retry_after_s: int | None = None
    is_preparing: bool = False
    is_loaded: bool = False
