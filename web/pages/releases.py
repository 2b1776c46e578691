"""A release: its contents, its gates, its production history, and its verbs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Actor, Verb, may
from ledger.core.errors import Invalid
from registry.actions import grant_waiver, restore, retire, write_note
from registry.core.file_rules import code_files
from registry.core.file_rules import waivers_needed as waivers_for
from registry.core.kinds import backend_of
from registry.core.lifecycle import ReleaseState
from registry.hooks.code_runs import code_runs_of
from registry.models import Release
from registry.queries.file_headers import headers_of_files, hidden_in
from registry.queries.reviews import notes_of, open_comments
from rollouts.core.decision import listed
from rollouts.core.lifecycle import ACTIVE
from rollouts.models import Rollout
from rollouts.queries.rollouts import rollouts_of
from serving.targets.queries.node_fit import fits_of
from validators.actions import request_gate_run
from validators.models import GateRun
from validators.queries import gate_runs
from validators.queries.entry import only_advice_failed
from validators.queries.envelope import envelope_of, newest_report_in, with_newest_report
from web.pages.forms import act, reason_in, version_in
from web.pages.release_frame import Outcome, frame, readable_release

#: Versions of a note that the page shows.
MOST_NOTES = 20


def _code_facts(release: Release, actor: Actor, files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts for a waiver; empty for a release without code."""
    if not release.is_code_bearing:
        return {}
    waivers = list(release.waivers.select_related("granted_by").order_by("pk"))
    given = {waiver.kind for waiver in waivers if waiver.manifest_digest == release.digest}
    needed = waivers_for(code_files(files)) or frozenset({"code"})
    missing = sorted(needed - given)
    headers = headers_of_files(files)
    may_waive = (
        may(actor, Verb.WAIVE_CODE, release.model.team.slug, release.model.slug) and release.author_id != actor.user_id
    )
    return {
        "waivers": waivers,
        "waivers_missing": missing,
        "may_waive": bool(missing) and may_waive,
        "code_files": _code_files(files, headers),
        "code_runs": code_runs_of(release),
    }


def _code_files(files: Sequence[Mapping[str, Any]], headers: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """{"path", "size_bytes", "imports", "hidden"} of executable files: those with hidden characters or imports first."""
    hidden = hidden_in(files, headers)
    code = set(code_files(files))
    imports = {path: facts["imports"] for path, facts in headers.items() if facts.get("imports") and path in code}
    found = [
        {
            "path": file["path"], "size_bytes": file["size_bytes"],
            "imports": imports.get(file["path"], ()), "hidden": hidden.get(file["path"], ()),
        }
        for file in files
        if file["path"] in hidden or file["path"] in code
    ]  # fmt: skip
    return sorted(found, key=lambda file: (not file["hidden"], file["path"]))


def why_not_rolled_out(
    release: Release, gate_run: GateRun | None, outcome: Outcome, rollouts: Sequence[Rollout] = ()
) -> str:
    """The reason why the release can't be rolled out, or an empty string."""
    if release.state != ReleaseState.SEALED:
        return f"{release.name} is {release.state}: restore it before it is rolled out."
    if outcome.stable_in:
        return f"{release.name} serves {', '.join(outcome.stable_in)} already. To other environments it goes by the command line."
    if outcome.candidate_in:
        return f"{release.name} is being rolled out in {', '.join(outcome.candidate_in)} now."
    under_way = next((one for one in rollouts if one.state in ACTIVE), None)
    if under_way is not None:
        return f"Rollout {under_way.pk} of {release.name} in {under_way.environment.slug} is under way."
    if gate_run is not None and gate_run.verdict == "failed" and not only_advice_failed(gate_run):
        gates = [one for one in gate_run.results.all() if one.verdict == "failed"]
        named = f"the {listed(one.gate for one in gates)} gate{'s' * (len(gates) > 1)}" if gates else "its gates"
        why = f": {gates[0].reason}" if gates else "."
        return (
            f"{release.name} cannot be rolled out, because it failed {named}{why} Look at the evidence in run {gate_run.pk}. "
            "Then correct the release and push it again; or, if the policy asks for too much or the machine was busy, change the "
            "gate policy and run the gates again."
        )
    return ""


@login_required
def release(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    actor = actor_of(request)
    found = readable_release(actor, slug, number)
    team = found.model.team.slug
    framed = frame(found, "release")
    manifest = json.loads(found.manifest)
    gate_run = with_newest_report(gate_runs().filter(release=found)).order_by("-pk").first()
    notes = list(notes_of(found)[:MOST_NOTES])
    rollouts = list(rollouts_of([found.model]).filter(candidate=found)[:5])
    code = _code_facts(found, actor, manifest["files"])
    why_not = why_not_rolled_out(found, gate_run, framed["outcome"], rollouts)
    if code.get("waivers_missing") and not why_not:
        why_not = f"{found.name} brings its own code, and no release manager has waived it."
    facts = {
        "manifest": manifest,
        "backend": backend_of(manifest),
        "size_bytes": sum(file["size_bytes"] for file in manifest["files"]),
        "gate_run": gate_run,
        "rollouts": rollouts,
        "fits": fits_of(found),
        "envelope": envelope_of(found, newest_report_in(gate_run)),
        "notes": notes,
        "open_comments": open_comments(found),
        "may_annotate": may(actor, Verb.ANNOTATE_RELEASE, team, slug),
        "may_run_gates": may(actor, Verb.RUN_GATES, team, slug)
        and found.state == ReleaseState.SEALED
        and not code.get("waivers_missing"),
        "may_start": may(actor, Verb.START_ROLLOUT, team, slug),
        "may_retire": may(actor, Verb.RETIRE_RELEASE, team, slug),
        "why_not": why_not,
        **code,
    }
    return render(request, "registry/release.html", {**framed, **facts})


def _here(request: HttpRequest, slug: str, number: int, verb: Any, done: str, to: str = "release") -> HttpResponse:
    return act(
        request,
        verb,
        done=done,
        then=reverse(to, args=[slug, number]),
        page=lambda: release(request, slug, number),
    )


def run_gates(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    actor = actor_of(request)
    found = readable_release(actor, slug, number)
    return _here(
        request,
        slug,
        number,
        lambda: request_gate_run(actor=actor, release=found, only_expired=bool(request.POST.get("only_expired"))),
        f"The gates of {found.name} are queued.",
        "release_gates",
    )


@login_required
def waive(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    actor = actor_of(request)
    found = readable_release(actor, slug, number)
    return _here(
        request,
        slug,
        number,
        lambda: grant_waiver(actor=actor, release=found, reason=reason_in(request)),
        f"The waiver for {found.name} is recorded.",
    )


@login_required
def note(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    actor = actor_of(request)
    found = readable_release(actor, slug, number)

    def written() -> object:
        return write_note(
            actor=actor,
            release=found,
            text=request.POST.get("text", ""),
            tags=request.POST.get("tags", "").replace(",", " ").split(),
            expected_version=version_in(request),
        )

    return _here(request, slug, number, written, f"The note on {found.name} is written.")


@login_required
def retire_release(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Confirmed by the release's name, as its bytes may go after a while."""
    actor = actor_of(request)
    found = readable_release(actor, slug, number)
    name = f"{found.model.slug}/{found.name}"

    def done() -> object:
        if request.POST.get("confirm", "").strip() != name:
            raise Invalid("not_confirmed", f"Type {name} into the field to confirm that this is the release you mean.")
        return retire(actor=actor, release=found, expected_version=version_in(request), reason=reason_in(request))

    return _here(request, slug, number, done, f"{found.name} is retired.")


@login_required
def restore_release(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    actor = actor_of(request)
    found = readable_release(actor, slug, number)
    return _here(
        request,
        slug,
        number,
        lambda: restore(actor=actor, release=found, expected_version=version_in(request), reason=reason_in(request)),
        f"{found.name} is sealed again.",
    )
