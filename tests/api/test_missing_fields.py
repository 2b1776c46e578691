"""A body with a missing or wrong field gets a refusal, never a server error."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.api.test_route_roles import ASKS, World, _send, callers, world
from tests.support.servers.issuer import Issuer

pytestmark = [pytest.mark.django_db, pytest.mark.slow]


def bodies(body: Any) -> list[Any]:
    """Variants of the body: a field left out, a field with a wrong value, an empty object, and values of other types."""
    if not isinstance(body, dict):
        return [None]
    without = [{name: value for name, value in body.items() if name != left} for left in body]
    return [
        {},
        [],
        None,
        "x",
        7,
        *without,
        *({**body, name: wrong} for name in body for wrong in (None, [], {}, 7, "\0")),
    ]


@pytest.mark.timeout(600)
def test_a_body_that_lacks_a_field_is_refused_and_breaks_nothing(settings: Any) -> None:
    settings.WEBHOOKS_ALLOW_PRIVATE, settings.WEBHOOK_TIMEOUT_S = True, 0.1
    admin = next(one.client for one in callers() if one.is_admin)
    admin.raise_request_exception = False
    broken, asked = [], 0
    with Issuer() as issuer:
        made = world(admin, issuer)
        for operation, ask in ASKS.items():
            given = ask.body(made)
            if operation.startswith("GET") or isinstance(given, bytes):
                continue
            for body in bodies(given):

                def sent(_: World, body: Any = body) -> bytes:
                    return json.dumps(body).encode()

                status, answer = _send(operation, replace(ask, body=sent), made, admin)
                asked += 1
                if status >= 500:
                    broken.append(f"{operation} with {body!r}: {status} {answer[:200]!r}")
    assert broken == [] and asked > 500
