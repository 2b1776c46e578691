"""API-wide rules: every refusal is problem JSON (RFC 9457), every list is paged by cursor."""

from __future__ import annotations

import json
import logging
import math
import re
import uuid
from collections.abc import Iterator
from itertools import islice
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation, ValidationError
from django.db import DataError, IntegrityError
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.pagination import CursorPagination as DrfCursorPagination
from rest_framework.parsers import JSONParser
from rest_framework.response import Response

from accounts.api.requests import InvalidBody
from accounts.core.addresses import API
from ledger.adapters.database_errors import unavailable
from ledger.core.chain import storable
from ledger.core.errors import DomainError
from registry.core.schema import MOST_PROBLEMS, repeated

log = logging.getLogger(__name__)
CONTENT_TYPE = "application/problem+json"
TITLES = {
    400: "Bad request",
    401: "Sign in first",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    408: "Too slow",
    409: "State changed",
    411: "Length needed",
    412: "Version changed",
    413: "Too large",
    415: "Unsupported media type",
    422: "Invalid",
    428: "If-Match needed",
    429: "Too many requests",
    500: "Internal error",
    503: "Unavailable",
}
#: What Django and its database say, as (status, code, sentence). The first that fits it is taken.
KNOWN: list[tuple[type[Exception] | tuple[type[Exception], ...], int, str, str]] = [
    (Http404, 404, "not_found", "There is nothing at this address, or you may not see it."),
    (PermissionDenied, 403, "forbidden", "You may not do this."),
    (RequestDataTooBig, 413, "too_large", "The request's body is too large for this address."),
    (SuspiciousOperation, 400, "bad_request", "The request is malformed."),
    (
        (DataError, UnicodeEncodeError),
        422,
        "invalid",
        "A value is too long, out of range or holds a zero byte or half a character; shorten or correct it.",
    ),
    (
        IntegrityError,
        409,
        "conflict",
        "Somebody else did the same at the same time, or this can no longer be changed. Look, then try again.",
    ),
]
#: What to do next, where REST framework only says what is wrong.
NEXT_STEPS = {
    "not_authenticated": "Send `Authorization: Bearer <token>`; `sluicegate login` gets one.",
    "unsupported_media_type": "Send JSON, with `Content-Type: application/json`.",
    "method_not_allowed": f"See {API}/schema for what this address takes.",
}
#: The same for single fields, by the code of REST framework's own checks.
FIXES = {
    "required": "Add it.",
    "null": "Write a value, or leave it out.",
    "blank": "Write a text that is not empty.",
    "unknown_field": "Remove it, or correct its name.",
    "not_text": "Write it as text, in quotes.",
    "not_a_whole_number": "Write a whole number, without quotes.",
    "not_a_number": "Write a number, without quotes.",
    "not_a_boolean": "Write true or false, without quotes.",
}
#: Values of one body. The longest lists are a release's files, and the pieces of their headers.
MOST_VALUES = 150_000
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
OTHER_FIX = f"Correct it; {API}/schema says what it may be."


def problem(status: int, code: str, detail: str, **facts: Any) -> dict[str, Any]:
    """The body of a problem. `code` is stable for programs, `detail` a sentence for people; facts never hide these."""
    named = {
        "type": f"/errors/{code}/",
        "title": TITLES.get(status, "Problem"),
        "status": status,
        "code": code,
    }
    return {**storable(facts), **named, "detail": storable(detail)}


def problem_handler(error: Exception, context: dict[str, Any]) -> Response:
    """DRF's exception handler: every exception becomes problem JSON; an unexpected one gets an id and no traceback."""
    body, headers = _describe(error)
    request = context.get("request")
    if request is not None:
        body["instance"] = request.path
    return Response(body, status=body["status"], headers=headers, content_type=CONTENT_TYPE)


def _describe(error: Exception) -> tuple[dict[str, Any], dict[str, str]]:
    if isinstance(error, DomainError):
        wait_s = error.facts.get("retry_after_s")
        headers = {} if wait_s is None else {"Retry-After": str(wait_s)}
        return problem(error.status, error.code, error.message, **_facts_of(error)), headers
    if isinstance(error, exceptions.ValidationError):
        errors = _first_of(_field_errors(error.detail))
        said = "; ".join(f"{found['field']}: {found['message']}" for found in errors)
        code = error.problem_code if isinstance(error, InvalidBody) else "invalid"
        return problem(422, code, f"The request has errors: {said}", errors=errors), {}
    if isinstance(error, exceptions.APIException):
        return _describe_rest(error)
    for kinds, status, code, detail in KNOWN:
        if isinstance(error, kinds):
            return problem(status, code, detail), {}
    if (refusal := unavailable(error)) is not None:
        log.error("%s: %s", refusal.code, error)
        return _describe(refusal)
    error_id = uuid.uuid4().hex[:12]
    log.error("request failed, error %s", error_id, exc_info=error)
    detail = f"Something broke on our side. Try again; if it stays, tell an administrator the error {error_id}."
    return problem(500, "internal", detail, error_id=error_id), {}


def _facts_of(error: DomainError) -> dict[str, Any]:
    return {name: value for name, value in error.facts.items() if name not in {"status", "code", "detail"}}


def _describe_rest(error: exceptions.APIException) -> tuple[dict[str, Any], dict[str, str]]:
    headers = {}
    if auth_header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = auth_header
    if (wait := getattr(error, "wait", None)) is not None:
        headers["Retry-After"] = str(math.ceil(wait))
    code = error.get_codes()
    code = code if isinstance(code, str) else "invalid"
    return problem(error.status_code, code, f"{error.detail} {NEXT_STEPS.get(code, '')}".strip()), headers


def _field_errors(detail: Any, field: str = "") -> Iterator[dict[str, str]]:
    """DRF's nested error detail, flat, as {field, message, fix}; `roles[1].role` is the second role's."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            yield from _field_errors(inner, _below(field, name))
        return
    if isinstance(detail, list):
        for i, inner in enumerate(detail):
            yield from _field_errors(inner, _below(field, i) if isinstance(inner, dict) else field)
        return
    name = field.removesuffix("non_field_errors").strip(".") or "body"
    yield {"field": name, "message": str(detail), "fix": FIXES.get(getattr(detail, "code", ""), OTHER_FIX)}


def _first_of(errors: Iterator[dict[str, str]]) -> list[dict[str, str]]:
    """The first MOST_PROBLEMS of the errors, and one more that counts the rest."""
    told, rest = list(islice(errors, MOST_PROBLEMS)), sum(1 for _ in errors)
    if rest:
        told.append({"field": "body", "message": f"{rest} more errors are not listed.", "fix": "Correct those above."})
    return told


def _below(field: str, name: str | int) -> str:
    """A member's place in the words of the documents' own schemas: `a.b` of an object, `a[0]` of a list."""
    return f"{field}[{name}]" if isinstance(name, int) else f"{field}.{name}".strip(".")


@csrf_exempt  # nothing happens here, and a program needs an answer in JSON
def unknown_address(request: HttpRequest, *args: object, **kwargs: object) -> JsonResponse:
    """Problem JSON (404) for unknown addresses under /api/."""
    detail = f"There is no {request.path} in this API; see {API}/schema."
    body = problem(404, "not_found", detail) | {"instance": request.path}
    return JsonResponse(body, status=404, content_type=CONTENT_TYPE)


class JsonParser(JSONParser):
    """JSON that everybody reads alike: a member that occurs twice, NaN and absurd depth are refused."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        data = stream.read()
        if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES and _values_in(data) > MOST_VALUES:
            raise exceptions.ParseError(f"The body has more than {MOST_VALUES} values. Send fewer.")
        try:
            return json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant, object_pairs_hook=_once)
        except RecursionError:
            raise exceptions.ParseError("The body is nested too deeply. Send it flatter.") from None
        except ValueError as error:
            raise exceptions.ParseError(f"The body is not JSON: {error}. Send one JSON object, in UTF-8.") from None


def _values_in(data: bytes) -> int:
    """About how many values a JSON text holds: its commas and brackets outside strings."""
    return sum(map(_STRING.sub(b"", data).count, (b",", b"[", b"{")))


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(members)
    if len(read) < len(members):
        raise ValueError(f"the member {repeated(name for name, _ in members)[0]!r} occurs twice")
    return read


class CursorPagination(DrfCursorPagination):
    """Cursor pages: {results, next, previous}. A view names its order in `pagination_ordering`, else newest first.

    The order must end in something unique, such as the primary key, or rows that tie may be shown twice.
    """

    page_size_query_param = "page_size"
    max_page_size = 200

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> Any:
        try:
            return super().paginate_queryset(queryset, request, view)
        except (ValueError, TypeError, ValidationError, DataError):
            if self.cursor_query_param not in request.query_params:
                raise
            raise exceptions.NotFound("This cursor is not one of ours. Start again without it.") from None

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        link = {"type": ["string", "null"], "description": "the address of that page; null where there is none"}
        members = {"next": link, "previous": link, "results": schema}
        return {"type": "object", "required": ["next", "previous", "results"], "properties": members}

    def get_ordering(self, request: Any, queryset: Any, view: Any) -> tuple[str, ...]:
        ordering = getattr(view, "pagination_ordering", "-pk")
        return (ordering,) if isinstance(ordering, str) else tuple(ordering)
