"""A model's releases: filters in the words of the API, orders, pages, what a row says, and what it costs to ask."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.core.access import Role
from registry.actions import write_note
from registry.core.lifecycle import ReleaseState
from registry.models import Release, ServedModel
from tests.support.worlds import factories
from tests.support.worlds.factories import make_admin, make_blob, make_model, make_release, make_team, make_user
from tests.support.worlds.page_world import copies
from tests.support.worlds.rollout_setup import put, report_for, serves, started
from validators.models import Measurement
from web.pages import release_list

pytestmark = pytest.mark.django_db


def member() -> Client:
    client = Client()
    client.force_login(make_user(team="search", role=Role.RELEASE_MANAGER))
    return client


def page_of(client: Client, status: int = 200, **asked: str) -> str:
    page = client.get("/models/sentiment/", asked)
    assert page.status_code == status
    return re.sub(r"\s+", " ", page.content.decode())


def listed(client: Client, **asked: str) -> list[str]:
    return re.findall(r'aria-label="Compare (r\d+)"', page_of(client, **asked))


def sized(size_bytes: int, model: ServedModel, **over: Any) -> Release:
    """A release whose one file has so many bytes."""
    bytes_of_it = f"{model.last_number:<{size_bytes}}".encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(factories, "make_blob", lambda: make_blob(bytes_of_it))
        return make_release(model, **over)


@pytest.fixture
def four() -> ServedModel:
    """r1 serves, r2 was rolled back, r3 is on its way; r4 was never rolled out and nothing of it was measured."""
    model = make_model("sentiment", team=make_team("search"), objectives={"errors_max_frac": 0.01})
    labelled = {"provenance": {"labels": {"precision": "int8"}, "notes": "Distilled."}}
    first, second = sized(30, model, spec=labelled), sized(10, model, author=make_user("ada"))
    third, fourth = sized(20, model), sized(40, model)
    Release.objects.filter(pk=fourth.pk).update(state=ReleaseState.RETIRED, retired_at=timezone.now(), version=2)
    serves(first)
    put(started(candidate=second), "rolled_back", weight_bp=0)
    put(started(candidate=third), "shifting")
    for release, p95, accuracy, verdict in (
        (first, 40.0, 0.91, "passed"),
        (second, 9.5, 0.95, "failed"),
        (third, 100, 0.9, "passed"),
    ):
        report = report_for(release, verdict)
        Measurement.objects.create(report=report, gate="load", name="latency p95", unit="ms", value=p95)
        Measurement.objects.create(report=report, gate="golden", name="accuracy", unit="frac", value=accuracy)
    write_note(actor=make_admin(), release=second, text="The one of spring.", tags=["gold"], expected_version=None)
    return model


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ["r4", "r3", "r2", "r1"]),
        ({"state": "sealed"}, ["r3", "r2", "r1"]),
        ({"state": "retired"}, ["r4"]),
        ({"outcome": "rolled_back"}, ["r2"]),
        ({"outcome": "moving"}, ["r3"]),
        ({"outcome": "none"}, ["r4", "r1"]),
        ({"serves": "production"}, ["r1"]),
        ({"verdict": "passed"}, ["r3", "r1"]),
        ({"label": "precision=int8"}, ["r1"]),
        ({"label": "precision"}, ["r1"]),
        ({"label": "precision=fp32"}, []),
        ({"label": "gold"}, ["r2"]),
        ({"text": "r3"}, ["r3"]),
        ({"text": "ADA"}, ["r2"]),
        ({"text": "of spring"}, ["r2"]),
        ({"text": "distilled"}, ["r1"]),
        ({"where": "metric.load.latency_p95<=50"}, ["r2", "r1"]),
        ({"where": "outcome!=rolled_back", "state": "sealed"}, ["r3"]),
        ({"where": "label!=gold", "verdict": "failed"}, []),
        ({"state": "no such", "outcome": "<b>", "sort": "nothing"}, ["r4", "r3", "r2", "r1"]),
        ({"sort": "number"}, ["r1", "r2", "r3", "r4"]),
        ({"sort": "created"}, ["r1", "r2", "r3", "r4"]),
        ({"sort": "p95"}, ["r2", "r1", "r3", "r4"]),
        ({"sort": "-p95"}, ["r3", "r1", "r2", "r4"]),  # what was not measured is last either way
        ({"sort": "-accuracy"}, ["r2", "r1", "r3", "r4"]),
        ({"sort": "size"}, ["r2", "r3", "r1", "r4"]),
        ({"sort": "-size", "state": "sealed"}, ["r1", "r3", "r2"]),
    ],
)
@pytest.mark.usefixtures("four")
def test_filters_and_orders_stand_in_the_address(asked: dict[str, str], found: list[str]) -> None:
    assert listed(member(), **asked) == found


def test_the_digest_is_found_by_its_beginning(four: ServedModel) -> None:
    digest = four.releases.get(number=3).digest or ""
    assert listed(member(), text=digest) == ["r3"] == listed(member(), text=digest.removeprefix("sha256:")[:12])


@pytest.mark.usefixtures("four")
def test_the_api_takes_the_same_words() -> None:
    client = member()
    for where, found in (("outcome=rolled_back", ["r2"]), ("label=gold", ["r2"]), ("serves=production", ["r1"])):
        answer = client.get("/api/v1/models/sentiment/releases", {"where": where})
        assert [one["name"] for one in answer.json()["results"]] == found


@pytest.mark.usefixtures("four")
def test_a_row_says_its_labels_p95_size_and_outcome() -> None:
    page = page_of(member())
    assert '<span class="tag">precision=int8</span>' in page and '<span class="tag">gold</span>' in page
    assert "40 ms" in page and "9.5 ms" in page and "30 B" in page
    assert "never rolled out" in page and "serves production" in page and "rolled back" in page


@pytest.mark.usefixtures("four")
def test_an_empty_result_says_how_to_clear_the_filter() -> None:
    page = page_of(member(), label="no-such", text='<script>"\0')
    assert "No release fits the filter" in page and 'href="/models/sentiment/">Clear the filter' in page
    assert "&lt;script&gt;" in page and "<script>&quot;" not in page and "sluicegate push" not in page


@pytest.mark.usefixtures("four")
def test_a_condition_that_is_none_is_told_and_the_list_stays() -> None:
    page = page_of(member(), 422, where="metric.golden.acuracy>0.9")
    assert "Did you mean metric.golden.accuracy" in page and "Compare r4" in page
    assert 'value="metric.golden.acuracy&gt;0.9"' in page  # what was typed stays


def test_a_filter_looks_at_no_more_than_it_says(four: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_list, "MOST_LOOKED_AT", 2)
    client = member()
    assert listed(client, state="sealed") == ["r3"] and listed(client, sort="-size") == ["r4", "r3"]
    assert listed(client) == ["r4", "r3", "r2", "r1"]  # by number there is an index
    page = page_of(client, state="sealed")
    assert "newest 2 of 4 releases" in page and "release list sentiment --where state=sealed" in page
    assert "newest 2 of" not in page_of(client)


def test_pages_keep_the_filter(four: ServedModel) -> None:
    one = four.releases.get(number=1)
    copies(one, 30, lambda i: {"id": uuid.uuid4(), "number": 10 + i, "digest": f"sha256:{i:064x}"})
    ServedModel.objects.filter(pk=four.pk).update(last_number=39)
    client = member()
    first, second = (listed(client, label="precision=int8", sort="number", page=page) for page in ("1", "2"))
    assert len(first) == 25 and len(second) == 6 and not {*first} & {*second}
    assert "label=precision%3Dint8" in page_of(client, label="precision=int8")
