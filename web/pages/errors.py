"""A page for each stable error code, the target of a problem's `type`, and a list of all. They need no sign-in."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from web.error_codes import error_codes
from web.listing import Filter, asked


def errors(request: HttpRequest) -> HttpResponse:
    filters = asked(request, Filter("text", "Code or words", hint="upload"))
    wanted = filters[0].value.casefold()
    rows = [one for one in error_codes().values() if wanted in f"{one.code} {one.means} {one.next_step}".casefold()]
    return render(request, "web/errors.html", {"rows": rows, "filters": filters, "is_filtered": bool(wanted)})


def error(request: HttpRequest, code: str) -> HttpResponse:
    found = error_codes().get(code)
    if found is None:
        raise Http404
    return render(request, "web/error.html", {"error": found})
