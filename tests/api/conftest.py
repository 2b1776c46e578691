"""Every answer that a test of this folder gets, refusals included, is what the committed schema says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.house.api_schema import differences


@pytest.fixture(autouse=True)
def _answers_fit_the_schema(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Noted, and told at the end: an answer may be given in another thread."""
    from rest_framework.response import Response  # not above: this file is read before Django has its settings
    from rest_framework.views import APIView

    found: list[str] = []
    finalize = APIView.finalize_response

    def noted(self: APIView, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        done = finalize(self, request, response, *args, **kwargs)
        if isinstance(done, Response) and 200 <= done.status_code < 500 and request.resolver_match is not None:
            body = None if done.data is None else json.loads(done.accepted_renderer.render(done.data))
            found.extend(differences(request.method, request.resolver_match.route, done.status_code, body))
        return done

    monkeypatch.setattr(APIView, "finalize_response", noted)
    yield
    assert sorted(set(found)) == [], (
        "answers that docs/openapi.json does not tell of; run `make openapi` if the code is right"
    )


@pytest.fixture
def dev(api: Callable[..., Any]) -> Any:
    """A signed-in member of the model's team, whose model is there."""
    from accounts.actions import actor_for
    from tests.support.worlds.registry_samples import person, served_model

    user = person("dev")
    served_model(actor_for(user))
    return api(user)
