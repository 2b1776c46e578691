"""API-wide rules: every refusal is problem JSON (RFC 9457), every list is paged by cursor."""

from __future__ import annotations

import uuid
from typing import Any

import structlog
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, JsonResponse
from rest_framework import exceptions
from rest_framework.pagination import CursorPagination as DrfCursorPagination
from rest_framework.response import Response

from accounts.core.errors import DomainError

log = structlog.get_logger(__name__)
CONTENT_TYPE = "application/problem+json"
TITLES = {
    400: "Bad request", 401: "Sign in first", 403: "Not allowed", 404: "Not found", 405: "Method not allowed", 406: "Not acceptable",
    409: "State changed", 412: "Version changed", 413: "Too large", 415: "Unsupported media type", 422: "Invalid", 428: "If-Match needed",
    429: "Too many requests", 500: "Internal error", 503: "Unavailable",
}  # fmt: skip


def problem(status: int, code: str, detail: str, **facts: Any) -> dict[str, Any]:
    """The body of a problem. `code` is stable for programs, `detail` a sentence for people."""
    return {
        "type": f"urn:sluicegate:problem:{code}",
        "title": TITLES.get(status, "Problem"),
        "status": status,
        "code": code,
        "detail": detail,
        **facts,
    }


def problem_handler(error: Exception, context: dict[str, Any]) -> Response:
    """DRF's exception handler: whatever was raised becomes a problem; the unexpected gets an id and no traceback."""
    body, headers = _describe(error)
    request = context.get("request")
    if request is not None:
        body["instance"] = request.path
    return Response(body, status=body["status"], headers=headers, content_type=CONTENT_TYPE)


def _describe(error: Exception) -> tuple[dict[str, Any], dict[str, str]]:
    if isinstance(error, DomainError):
        return problem(error.status, error.code, error.message, **error.facts), {}
    if isinstance(error, Http404):
        return problem(404, "not_found", "There is nothing at this address, or you may not see it."), {}
    if isinstance(error, PermissionDenied):
        return problem(403, "forbidden", "You may not do this."), {}
    if isinstance(error, exceptions.ValidationError):
        errors = _field_errors(error.detail)
        return problem(
            422,
            "invalid",
            "The request has errors: " + "; ".join(f"{e['field']}: {e['message']}" for e in errors),
            errors=errors,
        ), {}
    if isinstance(error, exceptions.APIException):
        headers = {}
        if getattr(error, "auth_header", None):
            headers["WWW-Authenticate"] = error.auth_header
        if getattr(error, "wait", None):
            headers["Retry-After"] = str(int(error.wait))
        code = error.get_codes()
        return problem(error.status_code, code if isinstance(code, str) else "invalid", str(error.detail)), headers
    error_id = uuid.uuid4().hex[:12]
    log.error("request_failed", error_id=error_id, exc_info=error)
    return problem(
        500, "internal", f"Something broke on our side; the log knows it as {error_id}.", error_id=error_id
    ), {}


def _field_errors(detail: Any, field: str = "") -> list[dict[str, str]]:
    """DRF's nested error detail as a flat list of {field, message}."""
    if isinstance(detail, dict):
        return [found for name, inner in detail.items() for found in _field_errors(inner, f"{field}.{name}".strip("."))]
    if isinstance(detail, list):
        return [found for inner in detail for found in _field_errors(inner, field)]
    return [{"field": field or "body", "message": str(detail)}]


def unknown_address(request: HttpRequest, *args: object, **kwargs: object) -> JsonResponse:
    """Problem JSON for whatever under /api/ is no address of ours."""
    body = problem(
        404, "not_found", f"There is no {request.path} in this API; see /api/v1/schema.", instance=request.path
    )
    return JsonResponse(body, status=404, content_type=CONTENT_TYPE)


class CursorPagination(DrfCursorPagination):
    """Cursor pages: {results, next, previous}. A view names its order in `pagination_ordering`; newest first by default."""

    page_size_query_param = "page_size"
    max_page_size = 200

    def get_ordering(self, request: Any, queryset: Any, view: Any) -> tuple[str, ...]:
        ordering = getattr(view, "pagination_ordering", "-pk")
        return (ordering,) if isinstance(ordering, str) else tuple(ordering)
