"""The tab of a model's golden sets, and the page that takes a new set: preview first, then add and use it in the policy."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from ledger.core.errors import DomainError, Invalid, NotFound
from registry.actions import change_model
from registry.models import ServedModel
from validators.actions import add_golden_set
from validators.core.gates import REPLAYING
from validators.core.golden_fit import fitted
from validators.core.golden_preview import Preview
from validators.core.golden_set import kind_of_lines
from validators.queries import golden_lines, golden_sets_of
from validators.queries.golden_preview import preview_golden_set, require_size, set_in_policy
from web.pages.forms import act, refused, version_in
from web.pages.model_frame import frame, readable_model


@login_required
def golden_sets(request: HttpRequest, slug: str) -> HttpResponse:
    served = readable_model(request, slug)
    found = golden_sets_of(served).select_related("created_by")
    facts = {
        "golden_sets": found,
        "used": set_in_policy(served),
        "may_edit": _may_edit(request, served),
    }
    return render(request, "registry/model_golden_sets.html", {**frame(served, "model_golden_sets"), **facts})


@login_required
def new(request: HttpRequest, slug: str) -> HttpResponse:
    return _form(request, readable_model(request, slug))


@login_required
def add(request: HttpRequest, slug: str) -> HttpResponse:
    """The form with a preview of the file, or its mistakes by line; or the set is added, and used if the form wants that."""
    served = readable_model(request, slug)
    try:
        data = _sent(request)
        if request.POST.get("verb") != "add":
            return _form(request, served, preview_golden_set(served, data))
        made, is_new = add_golden_set(actor=actor_of(request), model=served, data=data)
        if request.POST.get("use"):
            _put_into_policy(request, served, made.digest, version_in(request))
    except DomainError as error:
        told = error.facts.get("errors", [])
        return refused(request, error, lambda: _form(request, served, mistakes=told))
    messages.success(request, f"{made.items} examples are {'added' if is_new else 'there already'}: {made.digest}.")
    return redirect("model_golden_sets", slug)


@login_required
def use(request: HttpRequest, slug: str) -> HttpResponse:
    """The model's gate policy names this set from now on."""
    served = readable_model(request, slug)

    def verb() -> None:
        digest = request.POST.get("digest", "")
        if not golden_sets_of(served).filter(digest=digest[:100].replace("\0", "")).exists():
            raise NotFound("no_such_golden_set", f"{slug} has no such golden set. Choose a set from the list.")
        _put_into_policy(request, served, digest, version_in(request))

    done = "The golden gate asks this set from the next gate run on."
    then = reverse("model_golden_sets", args=[slug])
    return act(request, verb, done=done, then=then, page=lambda: golden_sets(request, slug))


def _put_into_policy(request: HttpRequest, served: ServedModel, digest: str, version: int) -> None:
    """With the usual comparison for this kind of set, if the policy names one for another set."""
    policy: dict[str, Any] = dict(served.gate_policy)
    kind = kind_of_lines(golden_lines(served, digest))
    for gate in REPLAYING:
        stated = policy.get(gate)
        policy[gate] = {**fitted(stated if isinstance(stated, dict) else {}, kind), "set": digest}
        if isinstance(policy.get("gates"), list) and gate not in policy["gates"]:
            policy["gates"] = [*policy["gates"], gate]
    change_model(actor=actor_of(request), model=served, expected_version=version, changes={"gate_policy": policy})


def _sent(request: HttpRequest) -> bytes:
    """The chosen file or the typed text. Raises Invalid if neither exists."""
    chosen = request.FILES.get("file")
    if chosen is not None:
        data: bytes = chosen.read()
        require_size(data)
        return data
    text = request.POST.get("text", "")
    if not text.strip():
        raise Invalid("golden_set_missing", "Choose a file of JSON lines, or write some into the field.")
    return text.encode("utf-8", "surrogatepass")


def _form(
    request: HttpRequest,
    served: ServedModel,
    preview: Preview | None = None,
    mistakes: list[dict[str, str]] | None = None,
) -> HttpResponse:
    facts = {
        "preview": preview,
        "mistakes": mistakes or [],
        "text": request.POST.get("text", ""),
        "may_edit": _may_edit(request, served),
        "used": set_in_policy(served),
    }
    return render(request, "registry/new_golden_set.html", {**frame(served, "model_golden_sets"), **facts})


def _may_edit(request: HttpRequest, served: ServedModel) -> bool:
    return may(actor_of(request), Verb.EDIT_MODEL, served.team.slug)
