"""Rows of the log on a page: which of them, and what each is about."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

from ledger.models import Event
from registry.models import Release
from registry.queries import releases_by_id

EVENTS_PER_PAGE = 50
#: The pages of subjects that are known by the number or name in the event.
PAGES = {
    "rollout": "rollout", "gate_run": "gate_run", "validation": "gate_run", "model": "model", "webhook": "webhook",
    "alarm": "alarm",
    "incident": "incident",
}  # fmt: skip


@dataclass(frozen=True)
class CursorPage:
    """Some events, newest first. `older`, `newer`: number of the next page, or None at the end."""

    rows: list[Event]
    older: int | None
    newer: int | None


def cursor_page(request: HttpRequest, events: QuerySet[Event]) -> CursorPage:
    """The page that `?before=SEQ` or `?after=SEQ` asks for: as fast at the log's end as at its beginning, and it moves under
    a reader while events are written."""
    before, after = (_number(request.GET.get(name, "")) for name in ("before", "after"))
    if after is not None:
        newer = list(events.filter(seq__gt=after).order_by("seq")[: EVENTS_PER_PAGE + 1])
        rows = newer[:EVENTS_PER_PAGE][::-1]
        older = rows[-1].seq if rows else after + 1
        return CursorPage(rows, older, rows[0].seq if len(newer) > EVENTS_PER_PAGE else None)
    found = events.filter(seq__lt=before) if before is not None else events
    rows = list(found.order_by("-seq")[: EVENTS_PER_PAGE + 1])
    is_more = len(rows) > EVENTS_PER_PAGE
    rows = rows[:EVENTS_PER_PAGE]
    newest = rows[0].seq if rows else (before or 1) - 1
    return CursorPage(rows, rows[-1].seq if is_more else None, newest if before is not None else None)


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def with_subjects(rows: Iterable[Event]) -> list[tuple[Event, str, str]]:
    """(event, its subject in words, the subject's page or nothing)."""
    rows = list(rows)
    ids = {UUID(row.subject_id) for row in rows if row.subject_type == "release"}
    releases = {str(pk): one for pk, one in releases_by_id(ids).items()}
    return [(row, *_subject(row, releases.get(row.subject_id))) for row in rows]


def _subject(event: Event, release: Release | None) -> tuple[str, str]:
    if release is not None and release.number is not None:
        slug = release.model.slug
        return f"{slug}/{release.name}", reverse("release", args=[slug, release.number])
    said = f"{event.subject_type} {event.subject_id}"
    try:
        return said, reverse(PAGES[event.subject_type], args=[event.subject_id])
    except (KeyError, NoReverseMatch):
        return said, ""
