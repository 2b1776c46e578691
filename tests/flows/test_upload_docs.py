"""The curl lines of docs/uploads.md, run as they stand: into a folder and into a real S3, cut off and run again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.db import connection

from accounts.actions import actor_for, issue_token
from registry.models import Blob, Release, Upload
from registry.storage import adapter
from tests.support.rigs.s3_rig import ACCESS_KEY, SECRET_KEY, SeaweedFS
from tests.support.rigs.upload_rig import PART_BYTES, ROOT, Installation, write_release
from tests.support.worlds.registry_samples import person, served_model, sha256
from tests.support.worlds.uploading import some_bytes

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.real("valkey", "postgres", "curl", "jq"),
    pytest.mark.timeout(400),
]


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.real("s3"))])
def installation(
    request: pytest.FixtureRequest, settings: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    server = None
    env = {"SLUICEGATE_BLOB_STORE": settings.BLOB_STORE}
    if request.param == "s3":
        server = SeaweedFS(tmp_path_factory.mktemp("weed"))
        server.start()
        env = server.environment(server.place())
        settings.BLOB_STORE, settings.S3_ENDPOINT = env["SLUICEGATE_BLOB_STORE"], server.endpoint
        settings.S3_ACCESS_KEY, settings.S3_SECRET_KEY = ACCESS_KEY, SECRET_KEY
    found = connection.settings_dict
    url = f"postgresql://{found['USER']}:{found['PASSWORD']}@{found['HOST']}:{found['PORT']}/{found['NAME']}"
    keys = {"SLUICEGATE_RELEASE_KEY_FILE": settings.RELEASE_KEY_FILE}
    made = Installation(tmp_path / "state", {"DATABASE_URL": url, **env, **keys})
    made.start_web()
    yield made
    made.stop()
    if server is not None:
        server.stop()


def lines() -> str:
    [block] = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "uploads.md").read_text(), re.S | re.M)
    return str(block)


def test_the_lines_push_a_release_and_go_on_when_they_are_cut_off(installation: Installation, tmp_path: Path) -> None:
    user = person("dev")
    served_model(actor_for(user))
    data = some_bytes(4 * PART_BYTES + 17)
    folder = write_release(tmp_path / "release", {"artifact/weights.data": data, "tokenizer/vocab.txt": b"a\nb\n"})
    (folder / "release.json").write_text(json.dumps(yaml.safe_load((folder / "release.yaml").read_text())))
    token = issue_token(user=user, name="tests", actor=actor_for(user))
    env = {**os.environ, "TOKEN": token, "URL": installation.url, "TMPDIR": str(tmp_path)}
    argv = [str(shutil.which("bash")), "-c", lines()]

    first = subprocess.Popen(
        argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not any(upload.parts.count() >= 3 for upload in Upload.objects.filter(size_bytes=len(data))):
        assert first.poll() is None and time.monotonic() < deadline, first.communicate()
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    installation.start_worker()  # not sooner: without one no release is sealed, so that the first run cannot end by itself

    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    release = Release.objects.get(state="sealed")
    assert done.stdout.splitlines()[-1] == f"r1 {release.digest}"
    assert Release.objects.count() == 1 and Upload.objects.filter(size_bytes=len(data)).count() == 1
    blob = Blob.objects.get(sha256=sha256(data))
    with adapter().open(blob.store_key) as content:
        assert content.read() == data
    if settings.BLOB_STORE.startswith("s3://"):
        assert installation.body_bytes() == 0
