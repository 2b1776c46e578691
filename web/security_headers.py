"""Middleware: every answer limits the browser, so that injected markup cannot run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from django.http import HttpRequest, HttpResponse

from registry.storage.cors import store_origin

#: Our own files and nothing else: no inline script or style, no plug-in, no frame, no other origin.
CONTENT_SECURITY_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "worker-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
#: Features that no page uses.
PERMISSIONS_POLICY: Final = ", ".join(
    f"{feature}=()"
    for feature in (
        "accelerometer", "camera", "display-capture", "geolocation", "gyroscope", "microphone", "midi", "payment", "usb",
    )
)  # fmt: skip


#: The one script that may run WebAssembly: it hashes what is uploaded. A worker obeys the policy of its own file alone.
_WORKER: Final = re.compile(r"/static/web/upload/upload-worker(\.[0-9a-f]{12})?\.js")


def worker_policy() -> str:
    """For the worker's own file: WebAssembly, and the bucket for uploaded parts, if any."""
    try:
        store = store_origin()
    except Exception:
        store = ""
    return f"default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self' {store}".strip()


class SecurityHeaders:
    """Stands before what serves static files, so that they have the headers too. A policy that is there already stays."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        answer = self.get_response(request)
        policy = worker_policy() if _WORKER.fullmatch(request.path) else CONTENT_SECURITY_POLICY
        answer.headers.setdefault("Content-Security-Policy", policy)
        answer.headers.setdefault("Permissions-Policy", PERMISSIONS_POLICY)
        return answer
