"""Middleware: pages and fragments travel compressed."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.middleware.gzip import GZipMiddleware


class GzippedPages(GZipMiddleware):
    """Compresses HTML alone: files of releases are large or compressed, API answers may hold secrets beside the caller's input,
    and a stream must not wait in a buffer. Django adds random bytes, so that a page's length reveals nothing (BREACH)."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        is_page = response.get("Content-Type", "").startswith("text/html")
        if response.streaming or not is_page:
            return response
        compressed: HttpResponseBase = super().process_response(request, response)
        return compressed
