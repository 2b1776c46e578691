"""Garbage collection: marks unreferenced bytes, deletes marked ones after their grace period, discards abandoned drafts first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor, Verb, require
from ledger.actions import append_event
from registry.actions.blobs import lock_blob
from registry.actions.drafts import purge_drafts
from registry.core.garbage_collection import Fate, Item, Kind, Plan
from registry.core.lifecycle import ReleaseState
from registry.models import Blob, Release, ReleaseFile, Tombstone
from registry.queries.gc_plan import present_plan, referrers, rules
from registry.storage import adapter

#: Blobs in one batch: marked in one transaction, deleted in one transaction each.
BATCH = 1000


@dataclass(frozen=True)
class Collected:
    """What one run did. `left`: how many items it did not get to; run again."""

    drafts: int = 0
    marked: int = 0
    restored: int = 0
    deleted: int = 0
    freed_bytes: int = 0
    left: int = 0
    sha256s: tuple[str, ...] = field(default=(), repr=False)

    @property
    def did_something(self) -> bool:
        return bool(self.marked or self.restored or self.deleted)

    def plus(self, more: Collected) -> Collected:
        """Both runs as one, the second being the later one."""
        counts = ("drafts", "marked", "restored", "deleted", "freed_bytes")
        both = {name: getattr(self, name) + getattr(more, name) for name in counts}
        return Collected(**both, left=more.left, sha256s=self.sha256s + more.sha256s)

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "sha256s"}


def collect_unused(*, actor: Actor, most: int = BATCH) -> Collected:
    """Does what the plan of this moment says, for at most `most` blobs. For administrators and the system.

    Safe beside uploads, seals and restores: before bytes go, it is asked once more, under the blob's lock, whether anybody
    needs them. A run that is cut off is finished by the next one.
    """
    require(actor, Verb.ADMINISTER, "")
    drafts = purge_drafts(actor=actor, older_than=rules().drafts_for)
    plan = present_plan()
    to_do = plan.of(Kind.BLOB, Fate.RESTORE, Fate.DELETE, Fate.MARK) + plan.of(
        Kind.BYTES, Fate.RESTORE, Fate.DELETE, Fate.MARK
    )
    now, left = to_do[:most], len(to_do[most:])
    _end_empty_marks(plan)
    done = Collected(drafts=drafts, left=left)
    try:
        for step in _steps(now, actor):
            done = replace(done.plus(step), left=left)
    finally:  # a run that breaks off says what it did until then
        if done.did_something:
            _record_event(done, actor)
    return done


def _steps(items: list[Item], actor: Actor) -> Iterator[Collected]:
    """Executes the plan's items; yields the counts of each part when it is done."""
    keys = _keys(items)
    for item in items:
        if item.fate is Fate.DELETE and _delete(keys[item.subject]):
            yield Collected(deleted=1, freed_bytes=item.size_bytes, sha256s=(item.subject.partition("/")[0],))
    yield Collected(marked=_mark([item for item in items if item.fate is Fate.MARK], keys, actor))
    yield Collected(restored=_restore(keys[item.subject] for item in items if item.fate is Fate.RESTORE))


@transaction.atomic
def _record_event(done: Collected, actor: Actor) -> None:
    append_event(
        verb="registry.collected",
        subject_type="registry",
        subject_id="blobs",
        actor=actor,
        facts={**done.as_json(), "sha256s": list(done.sha256s)},
    )


def run_housekeeping(*, actor: Actor) -> Collected:
    """What the worker does every few hours: abandoned drafts go, and where SLUICEGATE_GC_ENABLED says so, everything that may."""
    if not settings.GC_ENABLED:
        return Collected(drafts=purge_drafts(actor=actor, older_than=rules().drafts_for))
    done = collect_unused(actor=actor)
    step = done
    while step.left and step.did_something:  # what was skipped is locked by others; the next round takes it
        step = collect_unused(actor=actor)
        done = done.plus(step)
    return done


def _mark(items: list[Item], keys: Mapping[str, str], actor: Actor) -> int:
    now, undelete_for = timezone.now(), rules().undelete_for
    evidence = _evidence([item.subject for item in items if item.kind is Kind.BLOB])
    rows = [
        Tombstone(
            sha256=item.subject.partition("/")[0],
            size_bytes=item.size_bytes,
            store_key=keys[item.subject],
            reason=item.reason,
            evidence={"releases": evidence.get(item.subject, [])},
            marked_by=actor.name,
            marked_at=now,
            due_at=now + undelete_for,
        )
        for item in items
    ]
    Tombstone.objects.bulk_create(rows, ignore_conflicts=True)  # another run may mark at the same time
    return len(rows)


def _evidence(sha256s: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Which releases had each blob, under which path: what remains to be told of the bytes."""
    found: dict[str, list[dict[str, Any]]] = {}
    files = ReleaseFile.objects.filter(blob__in=sha256s).select_related("release__model").order_by("release__sealed_at")
    for file in files.only("blob", "path", "release__number", "release__digest", "release__model__slug"):
        release = file.release
        told = {"release": f"{release.model.slug}/{release.name}", "digest": release.digest, "path": file.path}
        found.setdefault(file.blob_id, []).append(told)
    return found


def _keys(items: list[Item]) -> dict[str, str]:
    """Where the store has what each item is about, by the item's subject."""
    blobs = [item.subject for item in items if item.kind is Kind.BLOB]
    stored = dict(Blob.objects.filter(pk__in=blobs).values_list("pk", "store_key"))
    return {item.subject: stored.get(item.subject, item.subject) for item in items}


def _end_empty_marks(plan: Plan) -> None:
    """Ends marks of bytes that somebody else deleted meanwhile, such as a draft that was the last to name them."""
    there = {item.subject for item in plan.items}
    for mark in Tombstone.objects.filter(ended_at__isnull=True).iterator():
        if mark.sha256 not in there and mark.store_key not in there and not adapter().exists(mark.store_key):
            Tombstone.objects.filter(pk=mark.pk, ended_at__isnull=True).update(
                ended_at=timezone.now(), outcome="deleted"
            )


def _restore(keys: Iterable[str]) -> int:
    """Takes the marks away."""
    marks = Tombstone.objects.filter(store_key__in=list(keys), ended_at__isnull=True)
    return marks.update(ended_at=timezone.now(), outcome="restored")


def _delete(key: str) -> bool:
    """Whether the bytes under this key are gone now. They stay when anybody needs them after all, or took the mark away."""
    sha256, now = key.partition("/")[0], timezone.now()
    with transaction.atomic():
        lock_blob(sha256)
        marks = Tombstone.objects.select_for_update(no_key=True).filter(
            store_key=key, ended_at__isnull=True, due_at__lte=now
        )
        mark = marks.first()
        blob = Blob.objects.filter(pk=sha256, store_key=key).first()
        if mark is None or (blob is not None and _is_needed(sha256)):
            return False
        # Before the commit, while the lock is held. Should that fail, the mark is still open and the next run comes here again.
        adapter().delete(key)
        marks.filter(pk=mark.pk).update(ended_at=now, outcome="deleted")
        if blob is not None and ReleaseFile.objects.filter(blob=blob).exists():
            Blob.objects.filter(pk=sha256).update(collected_at=now)
        elif blob is not None:
            blob.delete()
    return True


def _is_needed(sha256: str) -> bool:
    """Whether anything but retired releases has the blob. A concurrent restore of one of those waits until this is decided.

    One that somebody else holds needs it for now: who adds a file holds the draft and waits for the blob's lock, so this
    must not hold that lock and wait for the draft.
    """
    releases = set(Release.objects.filter(files__blob=sha256).values_list("pk", flat=True))
    free = Release.objects.select_for_update(no_key=True, skip_locked=True).filter(pk__in=releases).order_by("pk")
    states = free.values_list("state", flat=True)
    if len(states) < len(releases) or any(state != ReleaseState.RETIRED for state in states):
        return True
    return any(model._default_manager.filter(**{column: sha256}).exists() for model, column in referrers())
