"""Views of one run that a token which asked for it reads after the token's own end (decision 42)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar


class Followed:
    """Stands before APIView. Such a view only reads: an expired token may do nothing else."""

    subject_type: ClassVar[str]
    kwargs: dict[str, Any]

    def run_end(self) -> tuple[int, datetime | None] | None:
        """(the run's number, when it ended: None while it goes on), or None if there is no such run."""
        raise NotImplementedError
