"""The schema's part that is the same everywhere: which refusals an operation answers with, all of one shape."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.openapi import AutoSchema

from sluicegate.api import CONTENT_TYPE, TITLES

#: Members that every problem has; others are facts of its code.
_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "description": "RFC 9457. Beside these members there are facts that belong to the code, such as the version that is current.",
    "required": ["type", "title", "status", "code", "detail", "instance"],
    "properties": {
        "type": {
            "type": "string",
            "format": "uri-reference",
            "description": "/errors/<code>/, a page that says what to do next",
        },
        "title": {"type": "string", "description": "the status in words"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "stable, for programs"},
        "detail": {"type": "string", "description": "what is wrong and what to do, for people"},
        "instance": {"type": "string", "description": "the address that was asked"},
        "errors": {
            "type": "array",
            "description": "every mistake in what was sent",
            "items": {
                "type": "object",
                "required": ["field", "message", "fix"],
                "properties": {name: {"type": "string"} for name in ("field", "message", "fix")},
                "additionalProperties": True,
            },
        },
    },
    "additionalProperties": True,
}
_HEADERS: Final[dict[int, dict[str, str]]] = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": "seconds until the next try is taken"},
    503: {"Retry-After": "seconds"},
}
_WRITING: Final = frozenset({"POST", "PUT", "PATCH"})


class ApiSchema(AutoSchema):
    """Tells of every refusal. A view names those that its shape does not show in `refusals`, by method."""

    def get_operation(self, *args: Any, **kwargs: Any) -> Any:
        operation = super().get_operation(*args, **kwargs)
        if operation is not None:
            for status in sorted(self._refusals(operation)):
                operation["responses"][str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
        return operation

    def _refusals(self, operation: dict[str, Any]) -> set[int]:
        asked = {one["name"]: one for one in operation.get("parameters", []) if one["in"] != "path"}
        found = {406, 503} | set(getattr(self.view, "refusals", {}).get(self.method, ()))
        if self.view.get_authenticators():
            found |= {401, 403}
        if len(asked) < len(operation.get("parameters", [])):
            found.add(404)  # the path's objects
        if "cursor" in asked:
            found.add(404)
        if asked or "requestBody" in operation:
            found.add(422)
        if self.method in _WRITING:  # an unexpected body is read, too; its objects may not exist
            found |= {400, 404, 408, 411, 413, 415, 422}
        if self.method != "GET":
            found.add(409)
        if "If-Match" in asked:
            found |= {412, 428}
        return found


def with_problems(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Hook of drf-spectacular: the refusals that operations refer to."""
    components = result["components"]
    components["schemas"]["Problem"] = _PROBLEM
    components["responses"] = {f"Problem{status}": _answer(status) for status in sorted(TITLES) if status != 500}
    return result


def _answer(status: int) -> dict[str, Any]:
    told: dict[str, Any] = {
        "description": TITLES[status],
        "content": {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    if status in _HEADERS:
        told["headers"] = {
            name: {"schema": {"type": "string"}, "description": what} for name, what in _HEADERS[status].items()
        }
    return told
