"""Calls of the registry's API, what a refusal must look like, and whether one left anything behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings

from ledger.models import Event
from registry.models import Blob, Release, ReleaseFile, ServedModel


def counts() -> tuple[int, ...]:
    files = [path for path in Path(settings.BLOB_STORE).rglob("*") if path.is_file()]
    rows = (ServedModel, Release, ReleaseFile, Blob, Event)
    return (*(kind.objects.count() for kind in rows), len(files))


def send_json(client: Any, method: str, url: str, body: Any, **headers: str) -> Any:
    return getattr(client, method)(f"/api/v1{url}", body, format="json", headers=headers)


def refused(response: Any, status: int, code: str) -> dict[str, dict[str, str]]:
    """{field: error} of a problem answer, whose form is checked."""
    body = response.json()
    assert (response.status_code, response["Content-Type"], body["code"]) == (
        status,
        "application/problem+json",
        code,
    ), body
    assert body["status"] == status and body["title"] and body["detail"]
    errors = {error["field"]: error for error in body.get("errors", [])}
    assert all(error["message"] and error["fix"] for error in errors.values())
    return errors
