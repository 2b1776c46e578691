"""What one gateway has of one kind of resource, what it refused, and so its word on a route."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, field

from serving.traffic.control_plane.protos import SCOPE


@dataclass(frozen=True)
class StreamAck:
    """What the gateway says of one route's generation. An empty `error` is an acknowledgement; with one, `follows` tells that
    it had taken this generation before, and routes by it.
    """

    route_id: int
    generation: int
    error: str = ""
    follows: bool = False


@dataclass(frozen=True)
class Refusal:
    """A version that the gateway did not take, in its words. Not offered again before `until` (monotonic seconds)."""

    version: str
    words: str
    until: float = math.inf


@dataclass
class Received:
    """What the gateway has of one resource type."""

    is_asked: bool = False
    is_answered: bool = False
    is_wildcard: bool = False
    names: set[str] = field(default_factory=set)
    sent: dict[str, str] = field(default_factory=dict)  # name → version, also what it said it had when it came
    accepted: dict[str, str] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    has_answered: bool = False  # since `answered_at`, when the last of its answers was known of
    answered_at: float = -math.inf

    def forget(self, name: str) -> None:
        """Which version it was sent, so that it is sent again; not that it may have one, and is to be told when it is gone."""
        if name in self.sent:
            self.sent[name] = ""


def blamed(type_url: str, names: Set[str], error: str) -> Set[str]:
    """The resources of one response that were refused: those that the refusal names, or all of them where it names none. One bad
    virtual host refuses all that came with it. None without an error.
    """
    if not error:
        return set()
    return names if type_url == SCOPE else {name for name in names if name in error} or names
