"""A file under a running server that is not as it was sealed."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Drift:
    """One file that is not as sealed. sha256 as 64 hex digits; empty: there should be, or is, no such file."""

    path: str
    expected: str
    found: str

    @property
    def words(self) -> str:
        if not self.found:
            return f"{self.path} is gone"
        return f"{self.path} was changed" if self.expected else f"{self.path} was put there"

    def as_json(self) -> dict[str, str]:
        return asdict(self)
