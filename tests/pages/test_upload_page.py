"""The upload page as the server makes it: who may, what it begins with, a draft that it goes on with, the policies of its answers."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.actions import actor_for
from accounts.core.access import Role
from registry import actions
from registry.storage import cors
from serving.models import Node
from tests.support.worlds.factories import make_user
from tests.support.worlds.registry_samples import IMAGE, announced, person, release_yaml, served_model

pytestmark = pytest.mark.django_db


def page(user: Any, query: str = "", slug: str = "sentiment") -> Any:
    client = Client()
    client.force_login(user)
    return client.get(f"/models/{slug}/upload/{query}")


def test_it_begins_with_the_contract_and_a_runtime_that_is_offered() -> None:
    user = person("dev")
    served_model(actor_for(user))
    own = {"image": IMAGE, "server": "triton", "backends": ["sluicegate-onnx"], "versions": {}}
    Node.objects.create(name="n1", runtimes=[own], facts={}, seen_at=timezone.now())
    text = page(user).text
    assert f"image: {IMAGE}" in text and "name: probabilities" in text and 'data-at-once="3"' in text
    assert "sluicegate push DIR --model sentiment" in text  # without JavaScript


def test_the_models_page_leads_there_who_may_push() -> None:
    user = person("dev")
    served_model(actor_for(user))
    link = 'href="/models/sentiment/upload/">Upload a release</a>'
    for someone, is_offered in ((user, True), (person("mara", Role.RELEASE_MANAGER), False)):
        client = Client()
        client.force_login(someone)
        assert (link in client.get("/models/sentiment/").text) is is_offered


def test_it_goes_on_with_a_draft() -> None:
    user = person("dev")
    actor = actor_for(user)
    model = served_model(actor)
    draft, _ = actions.create_draft(
        actor=actor, model=model, spec=release_yaml({"provenance.notes": "</textarea><script>x</script>"}),
        files=announced(artifact__model_onnx=b"x"),
    )  # fmt: skip
    text = page(user, f"?draft={draft.pk}").text
    assert (
        "1 of\n        1 files are missing" in text
        and "&lt;/textarea&gt;&lt;script&gt;" in text
        and "<script>x" not in text
    )
    for wrong in ("?draft=x", "?draft=00000000-0000-0000-0000-000000000000"):
        assert "are missing" not in page(user, wrong).text


def test_who_may_not_push_is_told_and_others_find_nothing() -> None:
    served_model(actor_for(person("dev")))
    assert "You may not push" in page(person("mara", Role.RELEASE_MANAGER)).text
    assert page(make_user("eve", team="audio", role=Role.MODEL_TEAM)).status_code == 404
    assert Client().get("/models/sentiment/upload/").status_code == 302


def policy_of(name: str) -> str:
    answer = Client().get(f"/static/web/{name}")
    answer.close()
    return str(answer.headers["Content-Security-Policy"])


def test_only_the_worker_may_run_web_assembly(settings: Any) -> None:
    assert "wasm-unsafe-eval" in policy_of("upload/upload-worker.js")
    assert "wasm-unsafe-eval" in policy_of("upload/upload-worker.0123456789ab.js")
    assert "wasm" not in policy_of("upload/digests.js") + policy_of("upload-worker.js")
    settings.BLOB_STORE, settings.S3_ENDPOINT = "s3://models/x", "http://127.0.0.1:9"
    settings.S3_ACCESS_KEY, settings.S3_SECRET_KEY = "a", "b"
    assert "connect-src 'self' http://127.0.0.1:9" in policy_of("upload/upload-worker.js")
    assert "does not answer at http://127.0.0.1:9" in cors.cors_problem("https://sluicegate.example")
