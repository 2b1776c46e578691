"""Settings, Keys: whose signatures are accepted here, what each has signed, and a new one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from accounts.api.requests import actor_of
from ledger.core.errors import DomainError, NotFound
from ledger.queries.events import events
from registry import actions, queries
from registry.queries.signature_state import signatures_of, wrong_manifest_of
from registry.queries.signing_keys import attestations_by_key
from registry.signing import installation_keys
from validators.queries.gate_runs import reports_by_key
from web.pages.forms import act
from web.pages.settings_frame import ask_first, render_settings, require_administrator

_SIGNS = {"reports": "reports of gate runs", "releases": "releases, and statements about them"}


@login_required
def keys(request: HttpRequest) -> HttpResponse:
    asked = request.GET.get("release", "").strip()
    facts = {"rows": _rows(), "uses": list(installation_keys.Use), "asked": asked, **_verified(request, asked)}
    return render_settings(request, "settings/keys.html", "settings_keys", facts)


@login_required
def rotate(request: HttpRequest) -> HttpResponse:
    require_administrator(request)
    use = request.POST.get("use", "")
    if use not in set(installation_keys.Use):
        raise NotFound("no_such_use", "No key signs that. Go back and choose one.")
    if request.POST.get("confirmed") != "yes":
        sentences = [
            f"A new key signs {_SIGNS[use]} from now on.",
            "The private half of the one before is deleted. Its public half stays among the former keys, so that what it "
            "signed stays valid.",
            "Who checks signatures outside of Sluicegate needs the new public half.",
        ]
        return ask_first(request, f"Make a new key for {use}", sentences)
    actor = actor_of(request)
    return act(
        request, lambda: actions.rotate_key(actor=actor, use=installation_keys.Use(use)),
        done="A new key signs from now on. Give its public half to whoever checks signatures.",
        then=reverse("settings_keys"), page=lambda: keys(request),
    )  # fmt: skip


def _rows() -> list[dict[str, Any]]:
    releases, reports, made = attestations_by_key(), reports_by_key(), _made()
    rows = []
    for known in installation_keys.known_keys():
        key_id = known.public.key_id
        signed = releases.get(key_id)
        count, first, last = (
            (signed.count, signed.first_at, signed.last_at) if signed else reports.get(key_id, (0, None, None))
        )
        rows.append(
            {
                "key_id": key_id, "use": known.use.value, "signs": _SIGNS[known.use.value], "is_current": known.is_current,
                "algorithm": known.public.algorithm, "pem": known.public.pem, "hint": known.public.hint,
                "made_at": made.get(key_id), "count": count, "first_at": first, "last_at": last,
            }
        )  # fmt: skip
    return rows


def _made() -> dict[str, datetime]:
    """When a rotation made each key; the first one of an installation has no such event."""
    return dict(events().filter(verb="key.rotated").order_by("seq").values_list("to_state", "at"))


def _verified(request: HttpRequest, asked: str) -> dict[str, Any]:
    """The signatures of the release asked for, each checked now; `problem`: why it cannot be said."""
    if not asked:
        return {}
    slug, _, name = asked.partition("/")
    try:
        release = queries.visible_release(actor_of(request), slug, name)
    except DomainError as error:
        return {"problem": error.message}
    return {"release": release, "states": signatures_of(release), "wrong_manifest": wrong_manifest_of(release)}
