"""Which releases' files a node keeps ready beside those of its own servers, and in which order it fetches them: pure.

What is to be kept is what may be placed on the node at any moment: a rollout's candidate, the way back, what users are sent to. Its room
is what the node's copies may take, less what its servers use; what does not fit is said and not begun.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum, StrEnum


class Reason(IntEnum):
    """Why a release is kept ready; the first go first. `SERVED` has servers and is stable nowhere: it is prepared for a rollout, or
    the way back of one."""

    CANDIDATE = 1
    SERVED = 2
    STABLE = 3


class FilesStanding(StrEnum):
    """How far a node is with a release's files. `READY`: all are there, and each was verified. `NO_ROOM`: more than the node may keep."""

    WAITING = "waiting"
    FETCHING = "fetching"
    READY = "ready"
    FAILED = "failed"
    NO_ROOM = "no_room"


#: A rollout waits for these before its first weight: they end by themselves. The others are told, and not waited for.
UNDER_WAY = frozenset({FilesStanding.WAITING, FilesStanding.FETCHING})

#: A node that has made no progress for so long is not waited for.
PATIENCE = timedelta(minutes=2)


@dataclass(frozen=True)
class Kept:
    """A release that is to be kept ready. `blobs`: bytes by sha256."""

    release: str
    reason: Reason
    blobs: Mapping[str, int]

    @property
    def size_bytes(self) -> int:
        return sum(self.blobs.values())


@dataclass(frozen=True)
class KeepPlan:
    """What there is room for, in the order in which it is fetched, and what there is none for."""

    keep: tuple[Kept, ...] = ()
    no_room: tuple[Kept, ...] = ()

    @property
    def blobs(self) -> frozenset[str]:
        return frozenset(sha256 for one in self.keep for sha256 in one.blobs)


def plan_to_keep(asked: Sequence[Kept], room_bytes: int, in_use: Collection[str]) -> KeepPlan:
    """What fits into `room_bytes` beside the blobs `in_use`, which take none of it. Of the same reason the first asked go first."""
    keep: list[Kept] = []
    no_room: list[Kept] = []
    there = set(in_use)
    left = max(room_bytes, 0)  # servers may use more than the copies may take
    for one in sorted(asked, key=lambda one: one.reason):
        more = {sha256: size for sha256, size in one.blobs.items() if sha256 not in there}
        if sum(more.values()) <= left:
            left -= sum(more.values())
            there |= more.keys()
            keep.append(one)
        else:
            no_room.append(one)
    return KeepPlan(tuple(keep), tuple(no_room))
