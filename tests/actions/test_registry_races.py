"""Drafts, uploads and seals at the same time, in real transactions."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import pytest

from ledger.models import Event
from registry import actions, queries
from registry.models import Blob, Release
from tests.support.worlds.model_files import onnx_file
from tests.support.worlds.registry_samples import (
    ONNX,
    developer,
    draft_with,
    put,
    release_yaml,
    served_model,
    sha256,
)
from tests.support.worlds.registry_setup import dev, model, race, sealed, stored  # noqa: F401

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # threads that wait for one another


@pytest.mark.django_db(transaction=True)
@pytest.mark.slow
def test_drafts_are_made_beside_seals_of_their_model() -> None:
    """A draft's row names its model, and a seal holds that row: neither may wait for the other for ever."""
    dev = developer()
    model = served_model(dev)

    def several(who: int) -> set[str]:
        data = [onnx_file(f"{who} {i}") for i in range(6)]
        return {actions.seal(actor=dev, release=draft_with(dev, model, one)).state for one in data}

    results = race(*(lambda who=who: several(who) for who in range(4)))  # type: ignore[misc]
    assert results == [{"sealed"}] * 4
    assert sorted(Release.objects.values_list("number", flat=True)) == list(range(1, 25))


@pytest.mark.django_db(transaction=True)
def test_two_who_seal_get_two_numbers() -> None:
    dev = developer()
    model = served_model(dev)
    drafts = [draft_with(dev, model, onnx_file(note)) for note in ("one", "two", "three", "four")]
    results = race(*(lambda d=draft: actions.seal(actor=dev, release=d) for draft in drafts))
    assert sorted(release.number for release in results) == [1, 2, 3, 4]


@pytest.mark.django_db(transaction=True)
def test_two_who_seal_the_same_content_get_one_release() -> None:
    dev = developer()
    model = served_model(dev)
    drafts = [draft_with(dev, model) for _ in range(4)]
    results = race(*(lambda d=draft: actions.seal(actor=dev, release=d) for draft in drafts))
    assert {release.pk for release in results} == {results[0].pk} and results[0].number == 1
    assert Release.objects.count() == 1 and stored() == [sha256(ONNX)]


@pytest.mark.django_db(transaction=True)
def test_the_same_draft_sealed_twice_at_once_is_one_release() -> None:
    dev = developer()
    draft = draft_with(dev, served_model(dev))
    results = race(*(lambda: actions.seal(actor=dev, release=draft) for _ in range(3)))
    assert {release.number for release in results} == {1} and Event.objects.filter(verb="release.sealed").count() == 1


@pytest.mark.django_db(transaction=True)
def test_storing_and_discarding_the_same_bytes_at_once_keeps_rows_and_bytes_together() -> None:
    dev = developer()
    model = served_model(dev)
    for round_ in range(5):
        data = f"raced {round_}".encode()
        old, new = draft_with(dev, model, data), actions.create_draft(actor=dev, model=model, spec=release_yaml())[0]
        _, outcome = race(
            lambda old=old: actions.discard_draft(actor=dev, release=old),
            lambda new=new, data=data: put(dev, new, "artifact/model.onnx", data),
        )
        assert outcome is None or outcome.code == "blob_gone"
        assert set(Blob.objects.values_list("sha256", flat=True)) == set(stored())
        assert new.files.exists() == (outcome is None)


@pytest.mark.django_db(transaction=True)
def test_a_file_cannot_slip_into_a_seal_under_way() -> None:
    dev = developer()
    draft = draft_with(dev, served_model(dev))
    _, outcome = race(
        lambda: actions.seal(actor=dev, release=draft), lambda: put(dev, draft, "artifact/late.json", b"{}")
    )
    release = Release.objects.get()
    in_manifest = {file["path"] for file in queries.manifest_of(release)["files"]}
    assert in_manifest == set(release.files.values_list("path", flat=True))
    assert ("artifact/late.json" in in_manifest) == (outcome is None)
