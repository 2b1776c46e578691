"""How Sluicegate's own processes are: `/status/`."""

from __future__ import annotations

from itertools import groupby

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache

from accounts.api.requests import actor_of
from accounts.core.access import EVERY_TEAM, Verb, may
from audit.queries.process_status import overall, process_status, readable_parts
from web.pages.settings_frame import render_settings

_GROUPS = ("Rests on", "Leaders", "Workers", "Agents", "Gateways")


@login_required
@never_cache
def status(request: HttpRequest) -> HttpResponse:
    is_admin = may(actor_of(request), Verb.ADMINISTER, EVERY_TEAM)
    parts = sorted(readable_parts(process_status(), is_admin=is_admin), key=lambda part: _GROUPS.index(part.group))
    groups = [(name, list(found)) for name, found in groupby(parts, key=lambda part: part.group)]
    facts = {"groups": groups, "overall": overall(parts), "public_url": settings.PUBLIC_URL}
    return render_settings(request, "settings/status.html", "status", facts)
