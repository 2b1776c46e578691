"""The rollback target as the API answers it."""

from __future__ import annotations

from accounts.api.shapes import Shape, described


class TargetOut(Shape):
    """What a rollback would go to now."""

    release: str | None = described("null where there is nothing to go back to")
    message: str = described("the same in sentences, with what to do")
    is_missing: bool = described("there should be a target, and it has no server")
