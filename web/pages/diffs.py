"""The changes of one release against another, in a reviewer's order, with the decision in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import SafeString

from accounts.api.requests import actor_of
from accounts.core.access import Actor, Verb, may
from registry.core.reviews import SECTIONS
from registry.core.text_diff import Line
from registry.models import Release
from registry.queries import get_release, manifest_of, releases_of
from registry.queries.reviews import comments_of, open_first
from registry.queries.text_changes import FileChange, text_changes
from rollouts.models import Rollout
from rollouts.queries.approvals import excluded_from
from rollouts.queries.inbox import awaited_of
from serving.traffic.queries.routes import served_beside
from validators.core.disagreements import How
from validators.queries.disagreements import disagreements_of
from validators.queries.release_diff import whole_diff
from web.code.hidden import warning_of
from web.code.lines import html_of
from web.pages.compare_facts import interval_plot, metric_rows, verdict_of
from web.pages.release_frame import readable_release
from web.pages.rollout_verbs import Button, opening_buttons

#: Changes of configuration, and comments, that the page shows.
MOST_CHANGES, MOST_COMMENTS, MOST_OTHERS = 500, 200, 100
HOWS = [how.value for how in How]


@dataclass(frozen=True)
class DiffRow:
    """A line of a text diff: `sign` is +, - or empty; a row of kind `gap` counts the equal lines left out."""

    kind: str
    old: int | None
    new: int | None
    sign: str
    html: SafeString | str


@dataclass(frozen=True)
class FileDiff:
    change: FileChange
    rows: list[DiffRow]
    warning: str


@dataclass(frozen=True)
class Decision:
    """A rollout of the newer release that waits for a yes, and what this person may press. `refused`: the reason against it."""

    rollout: Rollout
    live: dict[str, Any]
    buttons: list[Button]
    refused: str


@login_required
def release_diff(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Against `?against=r1`; without it, against what a rollout that waits would replace, what an environment serves now, or the
    release before.

    `?how=` and `?slice=` narrow the golden answers, `?file=` shows the text of one file alone.
    """
    actor = actor_of(request)
    release = readable_release(actor, slug, number)
    others = list(releases_of(release.model).exclude(pk=release.pk)[:MOST_OTHERS])
    awaited = awaited_of(release)
    against, serves_in = _against(request, release, others, awaited[0] if awaited else None)
    facts: dict[str, Any] = {"release": release, "against": against, "serves_in": serves_in, "others": others}
    if against is not None:
        facts |= _comparison(request, actor, release, against)
        facts["decision"] = _decision(actor, release, *awaited) if awaited else None
    return render(request, "registry/diff.html", facts)


def _against(
    request: HttpRequest, release: Release, others: list[Release], awaited: Rollout | None
) -> tuple[Release | None, str]:
    """(the older release, the title of the environment that it serves unless the address names a release): the release that a
    waiting rollout would replace, else the one that serves, else the release before."""
    asked = request.GET.get("against", "") or request.POST.get("against", "")
    if asked:
        return get_release(release.model.slug, asked), ""
    if awaited is not None and awaited.stable is not None:
        awaited.stable.model = release.model
        return awaited.stable, awaited.environment.title
    before = next((one.number for one in others if (one.number or 0) < (release.number or 0)), None)
    found = served_beside(release, or_number=before)
    return found, (found.serves_in or "") if found is not None else ""  # type: ignore[attr-defined]


def _comparison(request: HttpRequest, actor: Actor, release: Release, against: Release) -> dict[str, Any]:
    told = whole_diff(against, release)
    how, part = _asked(request)
    answers = disagreements_of(against, release, how=how, part=part)
    only = request.GET.get("file", "").replace("\0", "")
    changes, more = text_changes(manifest_of(against), manifest_of(release), only)
    rows = metric_rows(told)
    comments = list(open_first(comments_of(release))[:MOST_COMMENTS])
    return {
        "diff": told,
        "verdict": verdict_of(told, answers, rows),
        "metrics": rows,
        "plot": interval_plot(told),
        "answers": answers,
        "hows": HOWS,
        "how": how,
        "part": part,
        "configuration": [one for one in told["changes"] if one["part"] != "contents"][:MOST_CHANGES],
        "files": [_file_diff(change) for change in changes],
        "files_left_off": more,
        "only": only,
        "comments": comments,
        "open_comments": sum(one.resolved_at is None for one in comments),
        "sections": SECTIONS,
        "may_annotate": may(actor, Verb.ANNOTATE_RELEASE, release.model.team.slug, release.model.slug),
    }


def _asked(request: HttpRequest) -> tuple[str, str]:
    how = request.GET.get("how", "")
    return (how if how in HOWS else ""), request.GET.get("slice", "")[:100]


def _decision(actor: Actor, release: Release, rollout: Rollout, live: dict[str, Any]) -> Decision | None:
    if not may(actor, Verb.READ, rollout.model.team.slug, rollout.model.slug):
        return None
    buttons = [one for one in opening_buttons(actor, rollout, live) if one.name in ("approve", "reject")]
    refused = ""
    if actor.user_id in excluded_from(rollout):
        refused = f"You made {release.name} or asked for this rollout; someone else must approve it."
    elif not buttons:
        refused = "It takes a release manager of the team to approve or reject."
    return Decision(rollout, live, buttons, refused)


def _file_diff(change: FileChange) -> FileDiff:
    rows: list[DiffRow] = []
    if change.diff is not None:
        for hunk in change.diff.hunks:
            if hunk.skipped:
                rows.append(DiffRow("gap", None, None, "", f"… {hunk.skipped} equal lines"))
            rows += [_row(line) for line in hunk.lines]
        if change.diff.skipped_after:
            rows.append(DiffRow("gap", None, None, "", f"… {change.diff.skipped_after} equal lines"))
    hidden = [line.text for hunk in (change.diff.hunks if change.diff else ()) for line in hunk.lines]
    return FileDiff(change, rows, "It contains hidden characters." if warning_of(hidden) else "")


def _row(line: Line) -> DiffRow:
    sign = {"old": "−", "new": "+"}.get(line.kind, "")
    return DiffRow(line.kind, line.old, line.new, sign, html_of(line.text))
