"""Many who upload the same bytes at once, into a folder and into a real S3: one blob row, one object, everybody served."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections
from rest_framework.test import APIClient

import registry.tasks  # noqa: F401 - registers the handlers of its jobs
from accounts.actions import actor_for, issue_token
from accounts.core.access import Actor
from registry import actions
from registry.models import Blob, ReleaseFile, Upload
from registry.storage import adapter
from tests.support.rigs.s3_rig import ACCESS_KEY, SECRET_KEY
from tests.support.worlds.registry_samples import person, release_yaml, served_model, sha256
from tests.support.worlds.uploading import begin, complete, send, some_bytes

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]
CLIENTS = 24
PART = 5 << 20  # the least that S3 takes


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.real("s3"))])
def client(request: pytest.FixtureRequest, settings: Any) -> Any:
    settings.UPLOAD_PART_BYTES = PART
    if request.param == "s3":
        server = request.getfixturevalue("seaweed")
        settings.BLOB_STORE, settings.S3_ENDPOINT = f"s3://{server.place()}", server.endpoint
        settings.S3_ACCESS_KEY, settings.S3_SECRET_KEY = ACCESS_KEY, SECRET_KEY
    user = person("dev")
    served_model(actor_for(user))
    made = APIClient()
    made.credentials(HTTP_AUTHORIZATION=f"Bearer {issue_token(user=user, name='tests', actor=actor_for(user))}")
    return made


def all_at_once(work: Callable[[int], Any]) -> list[Any]:
    """What each of CLIENTS threads got, all let go at one moment."""
    barrier, results = threading.Barrier(CLIENTS), list[Any]([None] * CLIENTS)

    def run(i: int) -> None:
        try:
            barrier.wait(60)
            results[i] = work(i)
        except Exception as error:
            results[i] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    return results


def draft(client: Any) -> str:
    return str(client.post("/api/v1/models/sentiment/releases", release_yaml(), format="json").json()["id"])


def keys() -> list[str]:
    return [key for key, _ in adapter().keys()]  # noqa: SIM118 - no mapping


@pytest.mark.parametrize("size", [1000, PART + 1000])
def test_twenty_four_clients_complete_one_digest_and_one_object_is_kept(client: Any, size: int) -> None:
    data = some_bytes(size)
    told = [begin(client, draft(client), "artifact/weights.data", data).json() for _ in range(CLIENTS)]
    assert len({one["upload_id"] for one in told}) == CLIENTS
    for one in told:
        send(client, one, data)
    header = client._credentials

    def finish(i: int) -> int:
        own = APIClient()
        own.credentials(**header)
        # Where they wait too long for each other, they are told to try again, as every client does.
        answers = (complete(own, told[i]["upload_id"]).status_code for _ in range(CLIENTS))
        status = next((one for one in answers if one != 503), 503)
        actions.verify(Upload.objects.select_related("release__model").get(pk=told[i]["upload_id"]), lambda **_: True)
        return int(status)

    results = all_at_once(finish)
    assert set(results) <= {200, 202}, results
    states = Upload.objects.values_list("state", "problem")
    assert set(states) == {("verified", "")}, list(states)
    blob = Blob.objects.get()
    assert blob.sha256 == sha256(data)
    assert ReleaseFile.objects.filter(blob=blob).count() == CLIENTS
    actions.sweep_uploads(actor=Actor.system("sweep"))
    assert keys() == [blob.store_key] and list(adapter().unfinished()) == []
    assert not Upload.objects.filter(is_stored=True).exists()
    with adapter().open(blob.store_key) as content:
        assert content.read() == data


def test_twenty_four_completes_of_one_upload_are_one(client: Any) -> None:
    data = some_bytes(PART + 1000)
    told = begin(client, draft(client), "artifact/weights.data", data).json()
    send(client, told, data)
    header = client._credentials

    def finish(_: int) -> Any:
        own = APIClient()
        own.credentials(**header)
        answer = complete(own, told["upload_id"])
        return answer.status_code, answer.json().get("state")

    assert set(all_at_once(finish)) == {(202, "verifying")}
    actions.verify(Upload.objects.select_related("release__model").get(), lambda **_: True)
    assert keys() == [Blob.objects.get().store_key]


def test_the_losers_of_a_race_leave_nothing_even_before_a_sweep(client: Any) -> None:
    data = some_bytes(2000)
    first, second = (begin(client, draft(client), "artifact/weights.data", data).json() for _ in range(2))
    for told in (first, second):
        send(client, told, data)
        complete(client, told["upload_id"])
        actions.verify(Upload.objects.select_related("release__model").get(pk=told["upload_id"]), lambda **_: True)
    assert keys() == [Blob.objects.get().store_key]
    assert set(Upload.objects.values_list("state", "is_stored")) == {("verified", False)}
