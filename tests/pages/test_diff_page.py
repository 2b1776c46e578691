"""The page that compares two releases: with and without an older one, with everything that can differ, for an outsider."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from accounts.core.access import Actor
from registry import actions
from registry.models import Release
from serving.traffic.actions.routes import set_route
from tests.support.worlds.factories import make_environment
from tests.support.worlds.model_files import onnx_file, tokenizer_file
from tests.support.worlds.registry_samples import draft_with, person, served_model

pytestmark = pytest.mark.django_db


def page(client: Client, number: int, query: str = "") -> str:
    answer = client.get(reverse("release_diff", args=["sentiment", number]) + query)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.fixture
def releases() -> list[Release]:
    actor = Actor.system("tests")
    model = served_model(actor)
    drafts = (
        draft_with(actor, model, onnx_file("one"), tokenizer__tokenizer_json=tokenizer_file({"[UNK]": 0, "good": 1})),
        draft_with(
            actor, model, onnx_file("two", weights=[("w", "FP16", [2])]), {"provenance.notes": "<b>bold</b>"},
            tokenizer__tokenizer_json=tokenizer_file({"[UNK]": 0, "fine": 1}, normalizer=None),
        ),
    )  # fmt: skip
    return [actions.seal(actor=actor, release=draft) for draft in drafts]


@pytest.fixture
def member(client: Client) -> Client:
    client.force_login(person("ana"))
    return client


def test_everything_that_differs_is_shown(member: Client, releases: list[Release]) -> None:
    shown = page(member, 2)
    assert "What r2 changes against r1" in shown and "at once against r1" in shown
    for text in (
        "artifact/model.onnx",
        "Tensors in onnx",
        "normalizer",
        "<code>fine</code>",
        "No gate of either release has run",
    ):
        assert text in shown
    assert "&lt;b&gt;bold" in shown and "<b>bold" not in shown


def test_it_is_against_what_is_served_where_something_is_and_values_are_json(
    member: Client, releases: list[Release]
) -> None:
    assert "serves now" not in page(member, 2)
    production = make_environment("production")
    set_route(
        actor=Actor.system("tests"),
        environment=production,
        model=releases[0].model,
        stable=releases[1],
        reason="It serves.",
    )
    shown = page(member, 1)
    assert "What r1 changes against r2" in shown and "r2 is what Production serves now." in shown
    assert "{&#x27;" not in shown and "The first that differ" in shown
    assert "serves now" not in page(member, 2, "?against=r1")


def test_the_first_release_has_nothing_before_it(member: Client, releases: list[Release]) -> None:
    assert "There is no older release" in page(member, 1)
    assert "What r1 changes against r2" in page(member, 1, "?against=r2")
    assert member.get(reverse("release_diff", args=["sentiment", 1]) + "?against=r9").status_code == 404


def test_a_release_page_leads_to_it_and_a_stranger_is_not_let_in(member: Client, releases: list[Release]) -> None:
    answer = member.get(reverse("release", args=["sentiment", 2]))
    assert reverse("release_diff", args=["sentiment", 2]) in answer.content.decode()
    member.force_login(person("eve", team="sound"))
    assert member.get(reverse("release_diff", args=["sentiment", 2])).status_code == 404
