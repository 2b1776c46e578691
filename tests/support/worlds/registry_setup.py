"""A developer, a model and sealed releases; and calls that race each other."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

from accounts.core.access import Actor
from ledger.core.errors import DomainError
from ledger.models import Event
from registry import actions
from registry.models import Release, ServedModel
from tests.support.worlds.registry_samples import (
    ONNX,
    developer,
    draft_with,
    served_model,
)


def verbs(subject: Any) -> list[str]:
    return list(Event.objects.filter(subject_id=str(subject)).order_by("seq").values_list("verb", flat=True))


def stored() -> list[str]:
    """The sha256 of everything in the store, and whatever else lies there."""
    return sorted(path.name for path in Path(settings.BLOB_STORE).rglob("*") if path.is_file())


@pytest.fixture
def dev() -> Actor:
    return developer()


@pytest.fixture
def model(dev: Actor) -> ServedModel:
    return served_model(dev)


def sealed(dev: Actor, model: ServedModel, data: bytes = ONNX, **more: bytes) -> Release:
    return actions.seal(actor=dev, release=draft_with(dev, model, data, **more))


def race(*calls: Any) -> list[Any]:
    """The results of the calls, each in a thread with a connection of its own, started together."""
    barrier, results = threading.Barrier(len(calls)), [None] * len(calls)

    def run(i: int) -> None:
        try:
            barrier.wait(60)
            results[i] = calls[i]()
        except DomainError as error:
            results[i] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return results
