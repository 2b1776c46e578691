"""Collection: which bytes may go, which stay, and why. The plan of a whole registry, from facts alone.

Bytes stay while anything may still need them: a release that is sealed or a draft, or whatever else refers to them. Bytes that
nobody needs are marked first; only when nobody wanted them back for the time that the rules give are they deleted. Of a
release, only bytes ever go: its manifest, digest, signatures and reports stay for good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from registry.core.lifecycle import ReleaseState


class Fate(StrEnum):
    """What a run does. `wait` was marked before; `restore` takes a mark away; `gone` was deleted by an earlier run.

    `retired` is a release that stays, and whose bytes are judged by themselves.
    """

    KEEP = "keep"
    RETIRED = "retired"
    RESTORE = "restore"
    MARK = "mark"
    WAIT = "wait"
    DELETE = "delete"
    GONE = "gone"


class Kind(StrEnum):
    RELEASE = "release"
    BLOB = "blob"
    BYTES = "bytes"  # in the store, under a key that no blob names


@dataclass(frozen=True)
class Rules:
    """`drafts_for`: a draft is abandoned after it. `undelete_for`: marked bytes are recoverable for this long.

    `settle_for`: bytes that came in just now may be about to be named by somebody.
    """

    drafts_for: timedelta
    undelete_for: timedelta
    settle_for: timedelta = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class ReleaseFacts:
    """`since`: created, for a draft; retired, for a retired one. `used_by`: what uses it, such as `stable in production`."""

    id: Hashable
    name: str  # sentiment/r3, or sentiment/draft 1f0c…
    state: ReleaseState
    since: datetime | None
    used_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlobFacts:
    """`releases`: ids of those that have it; `others`: what else does. `due_at`: marked, and deleted from then on.

    `stored_at` is only asked of what came in just now; None is long ago.
    """

    sha256: str
    size_bytes: int
    stored_at: datetime | None = None
    releases: tuple[Hashable, ...] = ()
    others: tuple[str, ...] = ()
    due_at: datetime | None = None
    is_collected: bool = False


@dataclass(frozen=True, slots=True)
class StrayFacts:
    """Bytes under a key that no blob names. `use`: why they are there, where somebody knows, such as an upload under way."""

    key: str
    size_bytes: int
    use: str = ""
    due_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the plan. `until`: when it changes by itself, if it does."""

    kind: Kind
    subject: str
    fate: Fate
    reason: str
    size_bytes: int = 0
    until: datetime | None = None


@dataclass(frozen=True)
class Plan:
    """What a run would do now, item by item: releases, then blobs, then stray bytes."""

    items: tuple[Item, ...]

    def of(self, kind: Kind, *fates: Fate) -> list[Item]:
        """The items of a kind with one of these fates."""
        return [item for item in self.items if item.kind is kind and item.fate in fates]

    def totals(self) -> dict[str, dict[str, int]]:
        """{fate: {"releases": n, "blobs": n, "bytes": size}}, of what has bytes."""
        counts: Counter[tuple[Fate, Kind]] = Counter()
        sizes: Counter[Fate] = Counter()
        for item in self.items:
            counts[item.fate, item.kind] += 1
            sizes[item.fate] += item.size_bytes
        return {
            fate.value: {
                "releases": counts[fate, Kind.RELEASE],
                "blobs": counts[fate, Kind.BLOB] + counts[fate, Kind.BYTES],
                "bytes": sizes[fate],
            }
            for fate in Fate
        }


def make_plan(
    releases: Iterable[ReleaseFacts],
    blobs: Iterable[BlobFacts],
    strays: Iterable[StrayFacts],
    *,
    rules: Rules,
    now: datetime,
) -> Plan:
    """Every release, blob and stray with its fate and the reason for it. Linear in their number.

    Each is taken once, releases first, then blobs, then strays: a registry of any size is read as it goes.
    """
    told = [(release, _release(release, rules, now)) for release in releases]
    names = _Names(
        all={release.id: release.name for release, _ in told},
        keep={release.id: f"{release.name} ({release.state})" for release, item in told if item.fate is Fate.KEEP},
        abandoned=frozenset(release.id for release, item in told if item.fate is Fate.DELETE),
    )
    items = [item for _, item in told]
    items += [_blob(blob, names, rules, now) for blob in blobs]
    items += [_stray(stray, rules, now) for stray in strays]
    return Plan(tuple(items))


@dataclass(frozen=True)
class _Names:
    """Releases by id as reasons call them: all of them, those that keep their bytes, and which are abandoned drafts."""

    all: Mapping[Hashable, str]
    keep: Mapping[Hashable, str]
    abandoned: frozenset[Hashable]


def _release(release: ReleaseFacts, rules: Rules, now: datetime) -> Item:
    def item(fate: Fate, reason: str, until: datetime | None = None) -> Item:
        return Item(Kind.RELEASE, release.name, fate, reason, until=until)

    if release.used_by:
        return item(Fate.KEEP, f"{release.state.value}; in use: {'; '.join(release.used_by)}")
    if release.state is ReleaseState.SEALED:
        return item(Fate.KEEP, "sealed; it goes only when somebody retires it")
    if release.state is ReleaseState.RETIRED:
        at = f" on {_day(release.since)}" if release.since else ""
        return item(Fate.RETIRED, f"retired{at}; its bytes may go, its manifest, digest, signatures and reports stay")
    over_at = (release.since or now) + rules.drafts_for
    if over_at > now:
        return item(Fate.KEEP, f"a draft; discarded on {_day(over_at)} unless it is sealed", over_at)
    return item(Fate.DELETE, f"a draft that nobody sealed in {_days(rules.drafts_for)}")


def _blob(blob: BlobFacts, names: _Names, rules: Rules, now: datetime) -> Item:
    def item(fate: Fate, reason: str, until: datetime | None = None) -> Item:
        return Item(Kind.BLOB, blob.sha256, fate, reason, blob.size_bytes, until)

    needed_by = [names.keep[id] for id in blob.releases if id in names.keep]
    needed_by += blob.others
    if needed_by:
        reason = f"needed by {_some(needed_by)}"
        if blob.is_collected:
            reason += "; but its bytes are gone: restore them from a backup, or upload them again"
        return item(Fate.KEEP, reason) if blob.due_at is None else item(Fate.RESTORE, f"{reason}; its mark goes")
    if blob.is_collected:
        return item(Fate.GONE, "its bytes were deleted by an earlier run; the tombstone tells what they were")
    drafts = [id for id in blob.releases if id in names.abandoned]
    if drafts and len(drafts) == len(blob.releases):
        return item(Fate.DELETE, f"only in {names.all[drafts[0]]}, which is abandoned")
    settled_at = blob.stored_at + rules.settle_for if blob.stored_at else now
    if not blob.releases and settled_at > now:
        return item(Fate.KEEP, "it came in just now, and somebody may be about to name it", settled_at)
    found = [names.all[id] for id in blob.releases if id in names.all]
    over = "retired or abandoned" if drafts else "retired"
    why = f"only in {_some(found)}, which {'is' if len(found) == 1 else 'are'} {over}" if found else "nothing names it"
    return item(*_marked(why, blob.due_at, rules, now))


def _stray(stray: StrayFacts, rules: Rules, now: datetime) -> Item:
    if stray.use:
        fate = Fate.KEEP if stray.due_at is None else Fate.RESTORE
        return Item(Kind.BYTES, stray.key, fate, stray.use, stray.size_bytes)
    fate, reason, until = _marked("no blob names it: an upload lost a race or was cut off", stray.due_at, rules, now)
    return Item(Kind.BYTES, stray.key, fate, reason, stray.size_bytes, until)


def _marked(why: str, due_at: datetime | None, rules: Rules, now: datetime) -> tuple[Fate, str, datetime | None]:
    """(fate, reason, until) of unreferenced bytes."""
    if due_at is None:
        return Fate.MARK, f"{why}; it can be had back for {_days(rules.undelete_for)} after it is marked", None
    if due_at > now:
        return Fate.WAIT, f"{why}; it can be had back until {_day(due_at)}", due_at
    return Fate.DELETE, f"{why}; it could be had back until {_day(due_at)}", None


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _day(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC" if at else "an unknown day"


def _days(span: timedelta) -> str:
    days = span.total_seconds() / 86400
    return f"{days:g} day" if days == 1 else f"{days:g} days"
