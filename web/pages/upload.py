"""The page that takes a release in: a folder, an archive or files, checked as they are chosen, sent in parts, sealed."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import render

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from ledger.core.errors import NotFound
from registry.adapters.json_yaml import write_text
from registry.core.file_rules import BACKENDS
from registry.core.folder_rules import for_pages
from registry.core.lifecycle import ReleaseState
from registry.models import Release, ServedModel
from registry.queries import missing_files, visible_release_by_id
from registry.storage.cors import cors_problem, is_bucket, store_origin
from serving.targets.queries.runtimes import offered_runtimes
from web.pages.model_frame import readable_model

#: Parts under way at once: a browser opens six connections to one server, and one must be left for pages.
AT_ONCE, AT_ONCE_TO_A_BUCKET = 3, 4


@login_required
def upload(request: HttpRequest, slug: str) -> HttpResponse:
    model = readable_model(request, slug)
    actor = actor_of(request)
    draft = _draft(request, model)
    facts: dict[str, Any] = {
        "model": model,
        "may_push": may(actor, Verb.PUSH_RELEASE, model.team.slug),
        "may_run_gates": may(actor, Verb.RUN_GATES, model.team.slug),
        "draft": draft,
        "draft_missing": missing_files(draft) if draft else [],
        "text": write_text(draft.spec if draft else _begun(model)),
        "csrf": get_token(request),
        "part_bytes": settings.UPLOAD_PART_BYTES,
        "at_once": AT_ONCE_TO_A_BUCKET if is_bucket() else AT_ONCE,
        "store_origin": store_origin(),
        "cors_problem": cors_problem(f"{request.scheme}://{request.get_host()}"),
        "backends": BACKENDS,
        "rules": json.dumps(for_pages()),
    }
    return render(request, "registry/upload.html", facts)


def _draft(request: HttpRequest, model: ServedModel) -> Release | None:
    """The draft of this model that the address names, if the person may see it and it is one still."""
    try:
        found = visible_release_by_id(actor_of(request), UUID(request.GET.get("draft", "")))
    except (ValueError, NotFound):
        return None
    return found if found.state == ReleaseState.DRAFT and found.model_id == model.pk else None


def _begun(model: ServedModel) -> dict[str, Any]:
    """A release.yaml to begin with: the model's contract, and a runtime that a node offers now."""
    runtimes = offered_runtimes()
    own: dict[str, Any] = {"image": "NAME@sha256:…", "backend": BACKENDS[0]}
    if runtimes:
        chosen = next((one for one in runtimes if BACKENDS[0] in one["backends"]), runtimes[0])
        fits = [one for one in chosen["backends"] if one in BACKENDS]
        own = {"image": chosen["image"], "server": chosen["server"], "backend": fits[0] if fits else BACKENDS[0]}
    sides = {side: list(model.contract.get(side, [])) for side in ("inputs", "outputs")}
    return {"model": model.slug, "runtime": own, "serving": {"max_batch_size": 1, **sides}}
