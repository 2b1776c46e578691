"""What blobs' headers say, read once and remembered beside the blob."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ledger.adapters.apart import Apart
from registry.core.formats import Findings, kind_of, reader_of
from registry.core.schema import Problem
from registry.models import Blob, Inspection
from registry.queries.file_headers import read_header, remembered_facts
from registry.storage import store

#: Of all files of a release. Pages and plans read them all.
MOST_TENSORS = 200_000


def inspect_files(files: Iterable[tuple[str, Blob]]) -> dict[str, Findings]:
    """path → what the file was found to be. Headers that were read before are remembered; the others are read now.

    Called when a blob was verified, so that sealing finds its header already read. Raises NotFound for bytes
    that are not in the store.
    """
    wanted = {path: (blob, kind_of(path)) for path, blob in files}
    known = remembered_facts({blob.pk for blob, _ in wanted.values()})
    found, new, keys = dict[str, Findings](), dict[tuple[str, str], Inspection](), store().keys
    with Apart() as apart:
        for path, (blob, kind) in wanted.items():
            facts = known.get((blob.pk, kind))
            if facts is None:
                found[path] = read_header(apart, path, keys, blob.store_key, blob.size_bytes)
                if not found[path].problems:
                    facts = known[blob.pk, kind] = found[path].facts
                    new[blob.pk, kind] = Inspection(blob=blob, kind=kind, reader=reader_of(kind), facts=facts)
            else:
                found[path] = Findings(kind, facts=facts)
    _bound_tensors(found)
    in_order = [new[key] for key in sorted(new)]  # one lock order: two concurrent seals must not deadlock
    Inspection.objects.bulk_create(
        in_order,
        update_conflicts=True,
        unique_fields=["blob", "kind"],
        update_fields=["reader", "facts"],
    )
    return found


def _bound_tensors(found: dict[str, Findings]) -> None:
    """Refuses the files that name more tensors than a release may, in the order of their paths."""
    room = MOST_TENSORS
    for path in sorted(found):
        room -= len(found[path].facts.get("tensors", ()))
        if room < 0:
            message = f"the release's files name more than {MOST_TENSORS} tensors."
            found[path] = replace(found[path], problems=(Problem(path, message, "Split the release."),), facts={})
