"""What every refusal of the API looks like."""

from __future__ import annotations

import json
from typing import Any


def assert_problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """The answer is problem JSON with the members that every problem has."""
    assert response.status_code == status
    assert response["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = json.loads(response.content)
    assert {"type", "title", "status", "detail", "code", "instance"} <= set(body)
    assert (body["status"], body["code"]) == (status, code)
    return body
