"""Drafts made of the text of release.yaml, whose mistakes are told with their lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from accounts.actions import actor_for
from accounts.core.access import Role
from registry.models import Release
from tests.api.registry_calls import send_json
from tests.support.worlds.registry_samples import ONNX, announced, person, release_yaml, served_model

pytestmark = pytest.mark.django_db
Api = Callable[..., Any]


def test_a_draft_is_made_of_the_text_of_release_yaml(dev: Any) -> None:
    text = yaml.safe_dump(release_yaml())
    body = {
        "release_yaml": text,
        "provenance": {"git_commit": "4f2a9c1"},
        "files": announced(artifact__model_onnx=ONNX),
    }
    made = send_json(dev, "post", "/models/sentiment/releases", body)
    assert made.status_code == 201, made.json()
    spec = Release.objects.get(pk=made.json()["id"]).spec
    assert spec["runtime"] == release_yaml()["runtime"] and spec["provenance"] == {"git_commit": "4f2a9c1"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model: sentiment\nmodel: other", "line 2"), ("- 1", "has no fields"), ("", "has no fields"), ([1], "no text"),
        ("a: [", "line 2, column 1"),
    ],
)  # fmt: skip
def test_mistakes_of_that_text_are_told_with_their_lines(dev: Any, text: Any, says: str) -> None:
    answer = send_json(dev, "post", "/models/sentiment/releases", {"release_yaml": text})
    assert answer.status_code == 422 and says in answer.json()["detail"]
    assert not Release.objects.exists()


def test_no_text_is_read_for_somebody_who_may_not_push(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    served_model(actor_for(person("dev")))
    monkeypatch.setattr("registry.api.releases.read_text", lambda text: pytest.fail("it was read"))
    viewer = api(person("vic", Role.VIEWER))
    answer = send_json(viewer, "post", "/models/sentiment/releases", {"release_yaml": "a: 1"})
    assert answer.status_code == 403 and answer.json()["code"] == "forbidden"
