"""What one gateway's stream has sent and has not heard of yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from serving.traffic.control_plane.protos import CLUSTER, ENDPOINTS, SCOPE

#: Responses of a kind on their way at once; of virtual hosts, so many of them. What changes while a gateway has as many to answer goes
#: together in the next one: a gateway, or a line, that is slower than a fleet changes gets the newest state, and not each state in
#: turn. What changed last goes first, and waits for these alone: a rollback never for a thousand others.
MOST_FLYING: Mapping[str, int] = {CLUSTER: 4, ENDPOINTS: 4, SCOPE: 20}


@dataclass
class Sent:
    """A response on its way: the versions in it by name, and when it was sent (monotonic seconds)."""

    type_url: str
    versions: dict[str, str]
    at: float
    is_late: bool = False


class Flights:
    """By nonce, in the order in which they were sent."""

    def __init__(self) -> None:
        self._sent: dict[str, Sent] = {}
        self._nonce = 0

    def __iter__(self) -> Iterator[tuple[str, Sent]]:
        return iter(list(self._sent.items()))

    @property
    def last(self) -> int:
        """The number of the last response that was sent."""
        return self._nonce

    @property
    def oldest(self) -> int:
        """The number of the first response that is on its way; where none is, of the next one that will be."""
        return int(next(iter(self._sent), self._nonce + 1))

    def begin(self, sent: Sent) -> str:
        """Notes it; returns its nonce."""
        self._nonce += 1
        self._sent[str(self._nonce)] = sent
        return str(self._nonce)

    def end(self, nonce: str) -> Sent | None:
        """It has been answered, or is waited for no more. None where nothing of that nonce is on its way."""
        return self._sent.pop(nonce, None)

    def room(self, type_url: str) -> int:
        """For so many of a kind more. One that is not answered in time takes none."""
        flying = sum(
            len(one.versions) if type_url == SCOPE else 1
            for one in self._sent.values()
            if one.type_url == type_url and not one.is_late
        )
        return max(MOST_FLYING[type_url] - flying, 0)
