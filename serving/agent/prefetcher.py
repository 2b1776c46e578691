"""Fetches ahead, one blob after the other, what may be placed on this node at any moment, and lets go of it last.

Each look begins anew from the rows and from what is in the cache, so that it may be ended anywhere. What this node's own servers wait
for goes first: it begins nothing while a server waits for a blob, and stands still within one while a server waits for another. A
deployment that fetches nothing at the moment, since its files cannot be had and it waits for its next try, is not in the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import structlog
from django.db import Error as StoreError

from accounts.core.access import Actor
from ledger.core.errors import DomainError
from registry.models import Release
from registry.queries import manifest_of
from registry.queries.releases import whole_releases
from serving.actions.prefetch import FilesReport, record_prefetches, record_progress
from serving.agent.blob_cache import BlobCache, DamagedBlob, NoRoom
from serving.core.prefetch import FilesStanding, KeepPlan, Kept, Reason, plan_to_keep
from serving.models import Node
from serving.queries.deployments import nodes
from serving.queries.placement import may_serve
from serving.queries.prefetch import releases_to_keep

log = structlog.get_logger(__name__)
_LOOK_EVERY_S = 2.0
#: While nothing changes that is to be kept, this often the copies are looked for all the same.
_RECHECK_S = 60.0
#: A release that could not be fetched is tried again after so long; meanwhile the others are fetched.
_RETRY_S = 30.0
_STEP_ASIDE_S = 0.1
#: Within a blob it says this often that it goes on; well within `PATIENCE`.
_TELL_EVERY_S = 20.0

#: Waits so many seconds; true as soon as the agent ends.
Wait = Callable[[float], bool]


class _Ended(Exception):
    """The agent ends, in the middle of a blob."""


@dataclass
class _Known:
    """A release that was read once: it never changes. `blobs` empty: not to be read, or this node may not serve it."""

    name: str
    blobs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Trouble:
    words: str
    until: float


class Prefetcher:
    """
    Args:
        cache: the node's copies, the very object that the launcher places files from.
        bytes_per_s: how fast; more than 0.
    """

    def __init__(self, cache: BlobCache, *, bytes_per_s: float) -> None:
        self._cache, self._bytes_per_s = cache, bytes_per_s
        self._known: dict[UUID, _Known] = {}
        self._fits_as: object = None  # what the node told when `_known` was found out
        self._troubles: dict[UUID, _Trouble] = {}
        self._tells_at = 0.0  # not before then that a blob goes on
        self._settled: tuple[object, float] | None = (
            None  # what was to be kept when all was ready, and until when that is believed
        )

    def look(self, *, actor: Actor, node: str, wait: Wait) -> float:
        """Fetches one blob at most; in how many seconds it is to be called again."""
        row = nodes().filter(name=node).first()
        if row is None:  # removed, or not heard of yet
            return _LOOK_EVERY_S
        wanted = releases_to_keep() if row.cordoned_at is None else {}
        try:
            return self._look(actor, row, wanted, wait)
        except StoreError:  # nobody could be told
            raise
        except Exception as error:  # else those who wait for this node would not know
            log.exception("prefetch_look_failed")
            self._settled = None
            record_prefetches(actor=actor, node=node, told=self._all_failed(wanted, error))
            return _LOOK_EVERY_S

    def _look(self, actor: Actor, row: Node, wanted: dict[UUID, Reason], wait: Wait) -> float:
        told = (tuple(wanted.items()), repr((row.runtimes, row.facts)))
        if self._settled is not None and self._settled[0] == told and time.monotonic() < self._settled[1]:
            return _LOOK_EVERY_S
        plan = self._plan(row, wanted)
        self._cache.kept = plan.blobs
        self._tell(actor, row.name, plan)
        due = self._next(plan)
        is_settled = due is None and not plan.no_room and not self._troubles
        self._settled = (told, time.monotonic() + _RECHECK_S) if is_settled else None
        if due is None or self._cache.is_busy:
            return _LOOK_EVERY_S
        tell = partial(record_progress, actor=actor, node=row.name)
        self._fetch(*due, partial(self._pause, wait, tell, due[1]))
        return 0.0

    def _plan(self, node: Node, wanted: dict[UUID, Reason]) -> KeepPlan:
        self._learn(node, wanted)
        asked = [
            Kept(str(release), reason, self._known[release].blobs)
            for release, reason in wanted.items()
            if self._known[release].blobs
        ]
        in_use = self._cache.in_use()
        return plan_to_keep(asked, self._cache.max_bytes - sum(in_use.values()), in_use.keys())

    def _learn(self, node: Node, wanted: dict[UUID, Reason]) -> None:
        """Reads what is not known yet; everything anew, where the node tells other things of itself than it did."""
        fits_as = repr((node.runtimes, node.facts))
        if fits_as != self._fits_as:
            self._known, self._fits_as = {}, fits_as
        self._known = {release: one for release, one in self._known.items() if release in wanted}
        self._troubles = {release: one for release, one in self._troubles.items() if release in wanted}
        for release in whole_releases(wanted.keys() - self._known.keys()).values():
            self._known[release.pk] = _Known(f"{release.model.slug} {release.name}", self._blobs_of(release, node))

    @staticmethod
    def _blobs_of(release: Release, node: Node) -> dict[str, int]:
        try:
            if not may_serve(release, [node]):
                return {}
            files = manifest_of(release)["files"]
            return {file["sha256"].removeprefix("sha256:"): int(file["size_bytes"]) for file in files}
        except (DomainError, KeyError, TypeError, ValueError) as error:  # whoever tampered with it is told elsewhere
            log.warning("prefetch_unreadable", release=str(release.pk), error=str(error))
            return {}

    def _tell(self, actor: Actor, node: str, plan: KeepPlan) -> None:
        told = [self._report_of(one) for one in plan.keep]
        limit = f"It does not fit into the {self._cache.max_bytes} bytes that this node's copies may take."
        told += [
            FilesReport(UUID(one.release), FilesStanding.NO_ROOM, one.size_bytes, self._here(one), limit)
            for one in plan.no_room
        ]
        record_prefetches(actor=actor, node=node, told=told)

    def _all_failed(self, wanted: dict[UUID, Reason], error: Exception) -> list[FilesReport]:
        """For what is known to be kept here. How much of it is there is not known now."""
        words = f"This node's copies could not be looked at: {error}. It is tried again."
        known = {release: one for release, one in self._known.items() if release in wanted and one.blobs}
        return [
            FilesReport(release, FilesStanding.FAILED, sum(one.blobs.values()), 0, words)
            for release, one in known.items()
        ]

    def _report_of(self, one: Kept) -> FilesReport:
        release, here = UUID(one.release), self._here(one)
        if all(self._cache.holds(sha256) for sha256 in one.blobs):
            self._troubles.pop(release, None)
            return FilesReport(release, FilesStanding.READY, one.size_bytes, here)
        if (trouble := self._troubles.get(release)) is not None:
            return FilesReport(release, FilesStanding.FAILED, one.size_bytes, here, trouble.words)
        return FilesReport(release, FilesStanding.FETCHING if here else FilesStanding.WAITING, one.size_bytes, here)

    def _here(self, one: Kept) -> int:
        return sum(size for sha256, size in one.blobs.items() if self._cache.holds(sha256))

    def _next(self, plan: KeepPlan) -> tuple[Kept, str] | None:
        """The first blob that is missing, of a release that did not fail just now."""
        now = time.monotonic()
        for one in plan.keep:
            trouble = self._troubles.get(UUID(one.release))
            if trouble is None or trouble.until <= now:
                for sha256 in one.blobs:
                    if not self._cache.holds(sha256):
                        return one, sha256
        return None

    def _fetch(self, one: Kept, sha256: str, pause: Callable[[int], None]) -> None:
        release = UUID(one.release)
        try:
            self._cache.hold(sha256, one.blobs[sha256], pause=pause)
        except _Ended:
            return
        except DamagedBlob as error:
            words = f"The stored bytes of {sha256} are damaged: {error}. Restore the blob or push again."
        except NoRoom as error:
            words = f"There is no room for it: {error}."
        except Exception as error:  # a store is an outside system: whatever it raises, the file could not be had
            words = f"{sha256} could not be fetched: {error}. It is tried again."
        else:
            return
        self._troubles[release] = _Trouble(words, time.monotonic() + _RETRY_S)
        log.warning("prefetch_failed", release=self._known[release].name, why=words)

    def _pause(self, wait: Wait, tell: Callable[[], None], sha256: str, moved_bytes: int) -> None:
        """After each range: long enough for the pace, and as long as a server waits for another blob; no more once one waits for this."""
        if time.monotonic() >= self._tells_at:
            self._tells_at = time.monotonic() + _TELL_EVERY_S
            with suppress(StoreError):  # no reason to let go of the blob: the next look meets it again
                tell()
        left_s = moved_bytes / self._bytes_per_s
        while (left_s > 0 or self._cache.is_busy) and not self._cache.is_awaited(sha256):
            step_s = min(left_s, _STEP_ASIDE_S) if left_s > 0 else _STEP_ASIDE_S
            if wait(step_s):
                raise _Ended
            left_s -= step_s
