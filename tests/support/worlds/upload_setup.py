"""Drafts that wait for bytes, and what the store holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

import registry.tasks  # noqa: F401 - registers the handlers of its jobs
from accounts.actions import actor_for
from registry.storage import adapter
from tests.support.worlds.registry_samples import person, release_yaml, served_model
from tests.support.worlds.uploading import some_bytes

Api = Callable[..., Any]
PART = 1000
DATA = some_bytes(3 * PART + 17)


@pytest.fixture(autouse=True)
def small_parts(settings: Any) -> None:
    settings.UPLOAD_PART_BYTES = PART


@pytest.fixture
def dev(api: Api) -> Any:
    user = person("dev")
    served_model(actor_for(user))
    return api(user)


def draft(client: Any, files: Any = None) -> str:
    body = release_yaml() | ({"files": files} if files is not None else {})
    answer = client.post("/api/v1/models/sentiment/releases", body, format="json")
    assert answer.status_code == 201, answer.json()
    return str(answer.json()["id"])


def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    body = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), body
    assert body["detail"]
    return body


def stored() -> dict[str, int]:
    return dict(adapter().keys())


def leftovers() -> list[str]:
    return [path.name for path in (Path(settings.BLOB_STORE) / "incoming").glob("*")]
