"""Uploads from a browser straight to a real S3: with the CORS rule of the docs, and what is said where there is another one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from accounts.actions import actor_for
from registry.models import Blob, Release
from registry.storage import cors
from tests.pages.upload_browser import Person, database_url
from tests.support.rigs.s3_rig import ACCESS_KEY, BUCKET, SECRET_KEY, SeaweedFS
from tests.support.rigs.upload_rig import PART_BYTES, Installation, write_release
from tests.support.worlds.registry_samples import person, served_model, sha256
from tests.support.worlds.uploading import some_bytes

pytestmark = [
    pytest.mark.real("chromium", "postgres", "valkey", "s3"),
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(600),
]
BIG = some_bytes(3 * PART_BYTES + 17)


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    server = SeaweedFS(tmp_path_factory.mktemp("weed"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def installation(
    weed: SeaweedFS, django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    env = {"DATABASE_URL": database_url(), **weed.environment(weed.place())}
    made = Installation(tmp_path_factory.mktemp("state"), env)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def ada(chromium: Browser, installation: Installation, settings: Any) -> Iterator[Person]:
    settings.SECRET_KEY = installation.env["SLUICEGATE_SECRET_KEY"]
    user = person("dev")
    served_model(actor_for(user))
    found = Person(chromium, installation, user)
    yield found
    found.context.close()


def set_cors(weed: SeaweedFS, line: str) -> None:
    """Does what the printed command does, which no test may need a program for."""
    found = re.fullmatch(r"aws s3api put-bucket-cors --bucket (\S+) --cors-configuration '(.*)'", line)
    assert found is not None and found[1] == BUCKET
    weed.client().put_bucket_cors(Bucket=BUCKET, CORSConfiguration=json.loads(found[2]))


def test_the_bytes_go_straight_to_the_bucket(
    ada: Person, installation: Installation, weed: SeaweedFS, tmp_path: Path, settings: Any
) -> None:
    set_cors(weed, cors.command(BUCKET, "https://another.example"))
    ada.open()
    told = ada.says("main", "does not let pages of")
    [line] = re.findall(r"Run: (aws s3api .*)", told)
    set_cors(weed, line)
    settings.BLOB_STORE, settings.S3_ENDPOINT = installation.env["SLUICEGATE_BLOB_STORE"], weed.endpoint
    settings.S3_ACCESS_KEY, settings.S3_SECRET_KEY = ACCESS_KEY, SECRET_KEY
    cors._asked.cache_clear()
    assert cors.cors_problem(installation.url) == "" != cors.cors_problem("https://another.example")
    folder = write_release(tmp_path / "release", {"artifact/weights.data": BIG, "tokenizer/vocab.txt": b"a\nb\n"})
    ada.choose(folder)
    ada.says("#checked", "Nothing is wrong")
    ada.send()
    digest = ada.seal()
    assert Release.objects.get().digest == digest and Blob.objects.filter(sha256=sha256(BIG)).exists()
    assert installation.body_bytes() == 0  # of any part
    assert ada.broken == []
