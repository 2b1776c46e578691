"""The tab of a model's traces: what each is like and what uses it; one is added, put into the policy, removed."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from accounts.api.requests import actor_of
from accounts.core.access import Verb, may
from ledger.core.errors import DomainError, Invalid
from registry.actions import change_model
from registry.models import ServedModel
from validators.actions import add_trace, remove_trace
from validators.actions.traces import MAX_RECORDING_BYTES
from validators.queries.traces import trace_named, trace_shape, traces_of, uses_of
from web.pages.forms import act, refused, version_in
from web.pages.model_frame import frame, readable_model


@login_required
def traces(request: HttpRequest, slug: str) -> HttpResponse:
    served = readable_model(request, slug)
    uses = uses_of(served)
    facts = {
        "traces": [
            {"row": one, "shape": trace_shape(one.blob_id), "use": uses.get(one.digest)}
            for one in traces_of(served).select_related("created_by")
        ],
        "may_edit": may(actor_of(request), Verb.EDIT_MODEL, served.team.slug),
        "most_mib": MAX_RECORDING_BYTES // 2**20,
    }
    return render(request, "registry/model_traces.html", {**frame(served, "model_traces"), **facts})


@login_required
def add(request: HttpRequest, slug: str) -> HttpResponse:
    """Adds the recording that was chosen, and puts it into the policy if that was asked for."""
    served = readable_model(request, slug)
    try:
        made, is_new = add_trace(actor=actor_of(request), model=served, recording=_sent(request))
        if request.POST.get("use"):
            _put_into_policy(request, served, made.digest)
    except DomainError as error:
        return refused(request, error, lambda: traces(request, slug))
    messages.success(request, f"{made.gaps} gaps are {'added' if is_new else 'there already'}: {made.digest}.")
    return redirect("model_traces", slug)


@login_required
def use(request: HttpRequest, slug: str) -> HttpResponse:
    """The model's gate policy names this trace from now on."""
    served = readable_model(request, slug)

    def verb() -> None:
        _put_into_policy(request, served, trace_named(served, _digest_in(request)).digest)

    return _done(request, slug, verb, "Loads go by this trace from the next gate run on.")


@login_required
def remove(request: HttpRequest, slug: str) -> HttpResponse:
    served = readable_model(request, slug)

    def verb() -> None:
        remove_trace(actor=actor_of(request), model=served, digest=_digest_in(request))

    return _done(request, slug, verb, "The trace is removed.")


def _done(request: HttpRequest, slug: str, verb: Any, done: str) -> HttpResponse:
    then = reverse("model_traces", args=[slug])
    return act(request, verb, done=done, then=then, page=lambda: traces(request, slug))


def _put_into_policy(request: HttpRequest, served: ServedModel, digest: str) -> None:
    policy: dict[str, Any] = dict(served.gate_policy)
    load = policy.get("load")
    policy["load"] = {**(load if isinstance(load, dict) else {}), "trace": digest}
    version = version_in(request)
    change_model(actor=actor_of(request), model=served, expected_version=version, changes={"gate_policy": policy})


def _digest_in(request: HttpRequest) -> str:
    return request.POST.get("digest", "")[:100].replace("\0", "")


def _sent(request: HttpRequest) -> bytes:
    """The file that was chosen. Raises Invalid where there is none."""
    chosen = request.FILES.get("file")
    if chosen is None:
        raise Invalid("trace_missing", "Choose a recording: CSV with a column TIMESTAMP, or a line for each instant.")
    return chosen.read(MAX_RECORDING_BYTES + 1)
