"""Middleware: pages and fragments travel compressed."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.middleware.gzip import GZipMiddleware


class GzippedPages(GZipMiddleware):
    """HTML alone: files of releases are large or compressed already, answers of the API may hold secrets beside what a caller
    sent, and a stream must not wait in a buffer. Django adds random bytes, so that a page's length tells nothing (BREACH)."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        is_page = response.get("Content-Type", "").startswith("text/html")
        if response.streaming or not is_page:
            return response
        compressed: HttpResponseBase = super().process_response(request, response)
        return compressed
