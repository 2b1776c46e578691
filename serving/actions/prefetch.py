"""What an agent tells of the releases that its node keeps ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor, Verb, require
from serving.core.prefetch import UNDER_WAY, FilesStanding
from serving.models import Prefetch


@dataclass(frozen=True)
class FilesReport:
    """How far the node is with one release."""

    release: UUID
    standing: FilesStanding
    size_bytes: int
    here_bytes: int = 0
    trouble: str = ""


_COLUMNS = ("standing", "size_bytes", "here_bytes", "trouble")


@transaction.atomic
def record_prefetches(*, actor: Actor, node: str, told: Sequence[FilesReport]) -> None:
    """The node's rows are these from now on. Nothing is written of what is so already; no event: nobody decides it. Raises Refused."""
    require(actor, Verb.ADMINISTER, "")
    rows = {one.release_id: one for one in Prefetch.objects.filter(node=node)}
    gone = rows.keys() - {one.release for one in told}
    if gone:
        Prefetch.objects.filter(node=node, release__in=gone).delete()
    for one in told:
        row, values = rows.get(one.release), {name: getattr(one, name) for name in _COLUMNS}
        if row is None or {name: getattr(row, name) for name in _COLUMNS} != values:
            Prefetch.objects.update_or_create(
                node_id=node, release_id=one.release, defaults={**values, "changed_at": timezone.now()}
            )


def record_progress(*, actor: Actor, node: str) -> None:
    """The node goes on with a blob, and so with all that waits for it there. Raises Refused."""
    require(actor, Verb.ADMINISTER, "")
    Prefetch.objects.filter(node=node, standing__in=UNDER_WAY).update(changed_at=timezone.now())
