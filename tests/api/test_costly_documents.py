"""The costliest document of each door costs a web process at most a second of processor time on an ordinary machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from accounts.actions import actor_for
from accounts.models import User
from registry import actions
from registry.actions import inspections, put_blob
from registry.actions.inspections import inspect_files
from registry.api import headers
from registry.models import Inspection, ServedModel
from tests.support.worlds.costly_documents import BODIES, CHECK, FILES_OF, MODEL, RAW, many_tensors, safetensors
from tests.support.worlds.registry_samples import draft_with, put

pytestmark = pytest.mark.django_db


def measured(call: Callable[[], Any]) -> tuple[Any, float]:
    """(result of the call, its processor time in units of a fixed calculation, which takes a tenth of a second)."""
    began = time.process_time()
    sum(i * i % 7 for i in range(1_500_000))
    unit, began = time.process_time() - began, time.process_time()
    return call(), (time.process_time() - began) / unit


@pytest.fixture(autouse=True)
def _warm(dev: Any) -> None:
    """The first request of a process loads the routes."""
    dev.get(f"{MODEL}/releases")
    dev.post(CHECK, {"document": ""}, format="json")


def test_many_parameters_are_bounded(dev: Any) -> None:
    query = "&".join(f"a{i}={i}" for i in range(900))
    answer, units = measured(lambda: dev.get(f"{MODEL}/releases?{query}"))
    assert answer.status_code < 500 and len(answer.content) < 1 << 20 and units <= 10


@pytest.mark.parametrize("name", BODIES)
def test_a_costly_body_is_bounded(dev: Any, name: str) -> None:
    method, url, body = BODIES[name]
    sent = json.dumps(body)
    answer, units = measured(lambda: dev.generic(method, url, sent, content_type="application/json", HTTP_IF_MATCH="1"))
    assert answer.status_code < 500 and len(answer.content) < 4 << 20
    assert units <= 10


@pytest.mark.parametrize("name", RAW)
def test_a_costly_file_is_read_apart(dev: Any, name: str) -> None:
    door, data = RAW[name]
    answer, units = measured(lambda: dev.post(f"{MODEL}/{door}", data, content_type="text/plain"))
    assert answer.status_code < 500 and len(answer.content) < 1 << 20
    assert units <= 10


@pytest.mark.parametrize("name", FILES_OF)
def test_a_costly_file_is_inspected_apart_and_read_again_at_little_cost(dev: Any, name: str) -> None:
    path, data = FILES_OF[name]
    actor = actor_for(User.objects.get(username="dev"))
    release = draft_with(actor, ServedModel.objects.get())
    actions.seal(actor=actor, release=release, expected_version=None)
    release.refresh_from_db()
    stored = put_blob(data())
    found, units = measured(lambda: inspect_files([(path, stored)]))
    assert units <= 10
    assert not found[path].facts or len(json.dumps(found[path].facts)) < 4 << 20
    Inspection.objects.filter(blob__in=release.files.values("blob")).update(facts=found[path].facts)
    for url in ("headers", ""):
        answer, units = measured(lambda url=url: dev.get(f"{MODEL}/releases/{release.name}/{url}".rstrip("/")))
        assert answer.status_code == 200 and len(answer.content) < 2 << 20
        assert units <= 10


def test_a_release_names_a_bounded_number_of_tensors(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspections, "MOST_TENSORS", 30)
    stored = put_blob(safetensors(many_tensors(20), 80))
    found = inspect_files([("artifact/a.safetensors", stored), ("artifact/b.safetensors", stored)])
    assert not found["artifact/a.safetensors"].problems
    (problem,) = found["artifact/b.safetensors"].problems
    assert "more than 30 tensors" in problem.message


def test_an_answer_lists_a_bounded_number_of_tensors(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "MOST_TENSORS", 30)
    actor = actor_for(User.objects.get(username="dev"))
    release = draft_with(actor, ServedModel.objects.get())
    for name in "ab":
        put(actor, release, f"artifact/{name}.safetensors", safetensors(many_tensors(20), 80))
    actions.seal(actor=actor, release=release, expected_version=None)
    release.refresh_from_db()
    one, two, *_ = dev.get(f"{MODEL}/releases/{release.name}/headers").json()["results"]
    assert (len(one["facts"]["tensors"]), "tensors_left_off" in one["facts"]) == (20, False)
    assert (len(two["facts"]["tensors"]), two["facts"]["tensors_left_off"]) == (10, 10)
