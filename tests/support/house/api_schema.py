"""The committed schema of the API as a judge of answers. A member that it does not declare is a difference too."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA: dict[str, Any] = json.loads((Path(__file__).parents[3] / "docs" / "openapi.json").read_text())
#: The schema tells of every address but its own.
_UNTOLD = "/api/v1/schema"


def differences(method: str, route: str, status: int, body: Any) -> list[str]:
    """What the answer has and the schema does not say, or the reverse. `route` is Django's, `body` parsed JSON or None."""
    path = _path(route)
    if path == _UNTOLD:
        return []
    where = f"{method} {path} {status}"
    operation = _paths().get(path, {}).get(method.lower())
    if operation is None and status == 405:
        return []
    told = (operation or {}).get("responses", {}).get(str(status))
    if told is None:
        return [f"{where}: the schema has no such answer"]
    told = answer_of(told)
    if "content" not in told:
        return [] if body is None else [f"{where}: the schema tells of no body"]
    media_type = "application/json" if status < 400 else "application/problem+json"
    judge = _judge(json.dumps(told["content"][media_type]["schema"]))
    return [f"{where} at {error.json_path}: {error.message[:200]}" for error in judge.iter_errors(body)]


def bare_objects() -> list[str]:
    """`GET /path 200 media/type` of every JSON answer whose schema says no more than that it is an object."""
    return [
        f"{method.upper()} {path} {status} {media_type}"
        for path, operations in SCHEMA["paths"].items()
        for method, operation in operations.items()
        for status, answer in operation["responses"].items()
        for media_type, content in answer_of(answer).get("content", {}).items()
        if "json" in media_type and not {"$ref", "oneOf"} & set(content["schema"].get("items", content["schema"]))
    ]


def answer_of(told: dict[str, Any]) -> dict[str, Any]:
    """An operation's answer, also where it refers to one that many share."""
    name = told.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = SCHEMA["components"]["responses"][name] if name else told
    return found


def _path(route: str) -> str:
    """`api/v1/rollouts/<int:rollout_id>` → `/api/v1/rollouts/{}`, and the same of a regular expression's groups."""
    bare = route.replace("^", "").replace("$", "")
    return "/" + re.sub(r"<[^>]+>", "{}", re.sub(r"\(\?P<\w+>[^)]*\)", "{}", bare))


@cache
def _paths() -> dict[str, Any]:
    """What the schema tells of each address, whatever it calls its parts."""
    return {re.sub(r"{\w+}", "{}", path): told for path, told in SCHEMA["paths"].items()}


@cache
def _judge(schema: str) -> Draft202012Validator:
    return Draft202012Validator({**json.loads(schema), "components": _closed()})


@cache
def _closed() -> Any:
    """The components, each taking no other members than those that it declares."""
    components = json.loads(json.dumps(SCHEMA["components"]))
    for schema in components["schemas"].values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return components
