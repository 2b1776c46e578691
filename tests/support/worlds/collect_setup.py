"""Releases that are sealed, routed and retired, for what collects their bytes."""

from __future__ import annotations

import pytest
from django.utils import timezone

import registry.tasks  # noqa: F401  # registers the jobs' handlers
from accounts.core.access import Actor
from registry import actions
from registry.core.garbage_collection import Item
from registry.models import Release, ServedModel
from registry.queries.gc_plan import present_plan
from serving.models import Route
from tests.support.worlds.factories import make_admin, make_environment
from tests.support.worlds.model_files import onnx_file
from tests.support.worlds.registry_samples import ONNX, developer, draft_with, served_model

SHARED, OTHER = b'{"shared": true}', onnx_file("other")


@pytest.fixture
def dev() -> Actor:
    return developer()


@pytest.fixture
def admin() -> Actor:
    return make_admin("root")


@pytest.fixture
def model(dev: Actor) -> ServedModel:
    return served_model(dev)


def sealed(dev: Actor, model: ServedModel, data: bytes = ONNX) -> Release:
    return actions.seal(actor=dev, release=draft_with(dev, model, data, tokenizer__tokenizer_json=SHARED))


def retired(dev: Actor, release: Release) -> Release:
    return actions.retire(actor=dev, release=release, expected_version=release.version, reason="superseded")


def fate(subject: str) -> Item:
    return next(item for item in present_plan().items if item.subject == subject)


def _route(release: Release, other: Release) -> str:
    Route.objects.create(
        environment=make_environment("production"), model=release.model, stable=release, changed_at=timezone.now()
    )
    return "stable in production"
