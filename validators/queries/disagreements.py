"""Where two releases' gate runs answered the same golden set differently: counted, and the first of them told.

The golden set is read line by line, and only lines on which the two differ are parsed: memory does not grow with either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django.db.models import OuterRef, Subquery
from django.db.models.fields.json import KT

from ledger.core.errors import DomainError
from registry.models import Release
from registry.storage import store
from validators.core.answers import in_words
from validators.core.disagreements import AnswerList, Disagreement, differing, disagreements
from validators.core.gates import REPLAYING
from validators.core.golden_set import GoldenItem
from validators.models import GateResult, GoldenSet

#: Items on which two releases may differ and are still read one by one.
MOST_READ: Final = 50_000
MOST_SHOWN: Final = 50


@dataclass(frozen=True)
class Compared:
    """`total` of `items` differ. `by_how` and `by_slice` count those that were `read`; `rows` are the first that were asked for.

    `why_not`: why nothing can be told; empty where something is.
    """

    why_not: str = ""
    items: int = 0
    total: int = 0
    read: int = 0
    by_how: tuple[tuple[str, int], ...] = ()
    by_slice: tuple[tuple[str, int], ...] = ()
    rows: tuple[Disagreement, ...] = ()
    matching: int = 0


@dataclass(frozen=True)
class _Both:
    """What both were asked: the golden set, their answers, and where these differ."""

    golden_blob: str
    old: AnswerList
    new: AnswerList
    positions: list[int]


def disagreements_of(old: Release, new: Release, *, how: str = "", part: str = "", most: int = MOST_SHOWN) -> Compared:
    """The first `most` items on which the two differ, of this kind and slice where they are named, with counts of all."""
    both = _both(old, new)
    if isinstance(both, str):
        return Compared(why_not=both)
    hows: Counter[str] = Counter()
    slices: Counter[str] = Counter()
    rows: list[Disagreement] = []
    matching = read = 0
    try:
        for one in _read(both):
            read += 1
            hows[one.how.value] += 1
            slices[one.slice] += 1
            if how in ("", one.how.value) and part in ("", one.slice):
                matching += 1
                if len(rows) < most:
                    rows.append(one)
    except (DomainError, OSError):
        return Compared(why_not="The golden set's bytes are not in the store now.")
    counted = (tuple(sorted(hows.items())), tuple(sorted(slices.items())))
    return Compared("", len(both.new.labels), len(both.positions), read, *counted, tuple(rows), matching)


def _read(both: _Both) -> Iterator[Disagreement]:
    with store().open(both.golden_blob) as stream:
        yield from disagreements(stream, both.positions[:MOST_READ], both.old, both.new)


def _both(old: Release, new: Release) -> _Both | str:
    """What both were asked in their newest reports; half a reason where they were not asked the same."""
    newest = _newest([old, new])
    found = [newest.get(old.pk), newest.get(new.pk)]
    for release, result in zip((old, new), found, strict=True):
        if result is None:
            return f"No golden gate of {release.name} has answers in a report."
    before, after = (result.evidence for result in found if result is not None)
    for name, word in (("golden_set", "golden set"), ("output", "output")):
        if before.get(name) is None or before.get(name) != after.get(name):
            return f"The two were not asked the same: another {word}."
    blob = next((result.golden_blob for result in reversed(found) if result is not None and result.golden_blob), None)  # type: ignore[attr-defined]
    if blob is None:
        return "The golden set is not known here any more."
    answers = [_answers(result) for result in found if result is not None]
    try:
        return _Both(blob, answers[0], answers[1], differing(answers[0], answers[1]))
    except ValueError as error:
        return f"They cannot be compared: {error}."


def _newest(releases: list[Release]) -> dict[UUID, GateResult]:
    """The golden gate of each release's newest report that ran one, by release, where it has answers, with `golden_blob`: where the
    bytes of its golden set are, None where the model does not have it any more. One query."""
    asked = GoldenSet.objects.filter(model=OuterRef("gate_run__release__model"), digest=OuterRef("digest"))
    runs = GateResult.objects.filter(gate_run__release__in=releases, gate_run__report__isnull=False, gate__in=REPLAYING)
    order = ("gate_run__release_id", "-gate_run__report__pk", "pk")
    runs = runs.annotate(digest=KT("evidence__golden_set"), golden_blob=Subquery(asked.values("blob_id")[:1]))
    rows = runs.select_related("gate_run").order_by(*order).distinct("gate_run__release_id")
    return {one.gate_run.release_id: one for one in rows if one.evidence.get("predictions")}


def right_in_run(gate_run: int | None, items: Sequence[GoldenItem]) -> Sequence[GoldenItem]:
    """The items of the golden set that the release answered rightly in this gate run. None if some were wrong and its answers are not
    kept."""
    result = GateResult.objects.filter(gate_run=gate_run, gate__in=REPLAYING).select_related("gate_run").first()
    if result is None or (result.evidence.get("accuracy") or {}).get("value") == 1:
        return items if result is not None else ()
    answers = _answers(result) if len(result.evidence.get("predictions") or ()) == len(items) else None
    return [one for at, one in enumerate(items) if answers and answers.at(at) == in_words(one.label, answers.names)]


def _answers(result: GateResult) -> AnswerList:
    policy: dict[str, Any] = (result.gate_run.policy or {}).get(result.gate) or {}
    return AnswerList(result.evidence["predictions"], policy.get("labels"))
