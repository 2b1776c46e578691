"""The drafts page and its endpoint: what is there of each, going on, discarding, who sees which, and how many questions it asks."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.actions import actor_for
from accounts.core.access import Role
from registry import actions
from registry.models import Release
from tests.pages.clients import dev, signed_in  # noqa: F401  # a fixture
from tests.support.worlds.factories import make_user
from tests.support.worlds.registry_samples import ONNX, announced, person, put, release_yaml, sha256

pytestmark = pytest.mark.django_db


def draft_of(user: Any, notes: str = "The first.") -> Release:
    actor = actor_for(user)
    model = Release._meta.get_field("model").related_model._default_manager.get(slug="sentiment")
    files = announced(artifact__model_onnx=ONNX, tokenizer__vocab_txt=b"a\nb\n")
    draft, _ = actions.create_draft(
        actor=actor, model=model, spec=release_yaml({"provenance.notes": notes}), files=files
    )
    put(actor, draft, "artifact/model.onnx", ONNX)
    actions.begin_upload(actor=actor, release=draft, path="tokenizer/vocab.txt", sha256=sha256(b"a\nb\n"), size_bytes=4)
    return draft


def test_it_tells_how_much_is_there_and_leads_on(dev: Any, api: Callable[..., Any]) -> None:
    draft = draft_of(dev)
    text = signed_in(dev).get("/drafts/").text
    assert "1 of 2" in text and "1 being sent" in text and f"/models/sentiment/upload/?draft={draft.pk}" in text
    [row] = api(dev).get("/api/v1/drafts").json()["results"]
    assert (row["announced_files"], row["held_files"], row["open_uploads"]) == (2, 1, 1)
    assert (row["announced_bytes"], row["held_bytes"]) == (len(ONNX) + 4, len(ONNX))
    assert api(dev).get("/api/v1/drafts?author=nobody").json()["results"] == []
    assert api(dev).get("/api/v1/drafts?model=sentiment%00&author=dev").status_code == 200


def test_a_draft_is_discarded_at_the_version_that_was_seen(dev: Any) -> None:
    draft, client = draft_of(dev), signed_in(dev)
    stale = client.post(f"/drafts/{draft.pk}/discard/", {"version": draft.version - 1})
    assert stale.status_code == 412 and Release.objects.filter(pk=draft.pk).exists()
    done = client.post(f"/drafts/{draft.pk}/discard/", {"version": draft.version}, follow=True)
    assert "The draft is discarded" in done.text and "No draft." in done.text
    assert client.post(f"/drafts/{draft.pk}/discard/", {"version": 1}).status_code == 404
    assert client.get(f"/drafts/{draft.pk}/discard/").status_code == 302


def test_who_sees_and_who_may(dev: Any) -> None:
    draft = draft_of(dev)
    mara = signed_in(person("mara", Role.RELEASE_MANAGER))
    assert "for its team" in mara.get("/drafts/").text
    assert mara.post(f"/drafts/{draft.pk}/discard/", {"version": draft.version}).status_code == 403
    eve = signed_in(make_user("eve", team="audio", role=Role.MODEL_TEAM))
    assert "No draft." in eve.get("/drafts/").text
    assert eve.post(f"/drafts/{draft.pk}/discard/", {"version": draft.version}).status_code == 404
    assert (
        "No draft fits" in mara.get("/drafts/?who=mine").text
        and "Go on" in signed_in(dev).get("/drafts/?who=mine").text
    )
    assert "No draft fits" in mara.get("/drafts/?model=<b>").text and "<b>" not in mara.get("/drafts/?model=<b>").text
    assert Client().get("/drafts/").status_code == 302


def test_it_asks_as_much_for_many_as_for_one(dev: Any) -> None:
    client, counts = signed_in(dev), []
    for more in (1, 30):
        for i in range(more):
            draft_of(dev, notes=f"{more} {i}")
        with CaptureQueriesContext(
            connection,
        ) as seen:
            client.get("/drafts/")
        counts.append(len(seen))
    assert counts[0] == counts[1] <= 12
