"""Uploads when processes are killed: the command line, the web process, the worker, and each at every step of the way.

`SLUICEGATE_EVERY_STEP=1` kills at every step; without it at a sample that is drawn anew each time.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.db import connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from rest_framework.test import APIClient

import registry.tasks  # noqa: F401 - registers the handlers of its jobs
from accounts.actions import actor_for, issue_token
from accounts.core.access import Actor
from ledger.actions import dispatch_due
from ledger.models import Job
from ledger.tasks import run_job
from registry import actions
from registry.core.uploads import UploadState
from registry.models import Blob, Release, ReleaseFile, Upload
from registry.queries import place_of
from registry.queries.gc_plan import present_plan
from registry.storage import FolderStore, ReceivedPart, adapter
from registry.storage.folder import PartWriter
from registry.storage.s3 import S3Store
from tests.kills.process import fork
from tests.support.rigs.s3_rig import ACCESS_KEY, SECRET_KEY, SeaweedFS
from tests.support.rigs.upload_rig import PART_BYTES, Installation, write_release
from tests.support.worlds.registry_samples import person, release_yaml, served_model, sha256
from tests.support.worlds.uploading import complete, put, some_bytes

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.real("valkey", "postgres"), pytest.mark.timeout(900)]
SAMPLE = 12
#: In /proc/net/tcp: one end has closed the connection, and the other not yet.
FIN_WAIT_1, FIN_WAIT_2, CLOSE_WAIT = "04", "05", "08"
SYSTEM = Actor.system("tests")


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    server = SeaweedFS(tmp_path_factory.mktemp("weed"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.real("s3"))])
def store_env(request: pytest.FixtureRequest, settings: Any, tmp_path: Path) -> dict[str, str]:
    """The settings of a store, for other processes; this one has them too."""
    settings.UPLOAD_PART_BYTES, settings.JOB_LEASE_S = PART_BYTES, 0.3
    if request.param == "folder":
        return {"SLUICEGATE_BLOB_STORE": settings.BLOB_STORE}
    server = request.getfixturevalue("seaweed")
    settings.BLOB_STORE = f"s3://{server.place()}"
    settings.S3_ENDPOINT, settings.S3_ACCESS_KEY, settings.S3_SECRET_KEY = server.endpoint, ACCESS_KEY, SECRET_KEY
    return server.environment(settings.BLOB_STORE.removeprefix("s3://"))


@pytest.fixture
def token() -> str:
    user = person("dev")
    served_model(actor_for(user))
    return issue_token(user=user, name="tests", actor=actor_for(user))


def nothing_unexplained() -> None:
    """Everything in the store is a blob's or of an upload that the sweep will clear; after the sweep it is blobs' alone."""
    explained = {upload.store_key for upload in Upload.objects.filter(is_stored=True)}
    named = set(Blob.objects.values_list("store_key", flat=True))
    keys = {key for key, _ in adapter().keys()}  # noqa: SIM118 - no mapping
    unfinished = {place.key for place in adapter().unfinished()}
    assert named <= keys
    assert keys - named <= explained, "stored, and nobody knows why"
    assert {key.partition("/")[2] for key in unfinished} <= {key.partition("/")[2] for key in explained}
    assert all(item.reason for item in present_plan().items)
    Upload.objects.filter(state=UploadState.OPEN).update(expires_at="2020-01-01T00:00:00Z")
    actions.sweep_uploads(actor=SYSTEM)
    assert {key for key, _ in adapter().keys()} == named  # noqa: SIM118
    assert list(adapter().unfinished()) == []


def is_whole(release: Release, files: dict[str, bytes]) -> None:
    held = {file.path: file.blob for file in ReleaseFile.objects.filter(release=release).select_related("blob")}
    assert {path: held[path].sha256 for path in files} == {path: sha256(data) for path, data in files.items()}
    for path, data in files.items():
        with adapter().open(held[path].store_key) as content:
            assert content.read() == data


# --- every step, in one process that does it all


class Steps:
    """Ends this process at the n-th step: before or after each write to the database, commit, and act on the store."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def step(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def stepping(*arguments: Any, **named: Any) -> Any:
            self.step()
            answer = real(*arguments, **named)
            self.step()
            return answer

        setattr(owner, name, stepping)

    def statement(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if not sql.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE")):
            return execute(sql, params, many, context)
        self.step()
        answer = execute(sql, params, many, context)
        self.step()
        return answer

    def watch(self) -> None:
        connection.execute_wrappers.append(self.statement)
        self.around(BaseDatabaseWrapper, "_commit")
        for name in ("begin", "complete", "abort", "delete"):
            self.around(type(adapter()), name)
        if isinstance(adapter(), FolderStore):
            for name in ("_move_in", "_link"):
                self.around(FolderStore, name)
            for name in ("write", "finish", "close"):
                self.around(PartWriter, name)
        else:
            self.around(S3Store, "_complete")


def push_in_process(token: str, files: dict[str, bytes], result: Path | None = None) -> str:
    """A whole push, as the command line, the web process and a worker do it between them; the sealed release's id."""
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")

    def post(path: str, body: Any = None) -> Any:
        answer = client.post(f"/api/v1{path}", body or {}, format="json")
        assert answer.status_code < 300, answer.json()
        return answer.json()

    announced = [{"path": path, "sha256": sha256(data), "size_bytes": len(data)} for path, data in files.items()]
    draft = post(
        "/models/sentiment/releases", release_yaml({"runtime.backend": "python"}) | {"files": announced, "resume": True}
    )
    for path in draft["missing"]:
        told = post(
            "/uploads",
            {"release": draft["id"], "path": path, "size_bytes": len(files[path]), "sha256": sha256(files[path])},
        )
        if told["exists"] or told["state"] != "open":
            continue
        for number in told["missing"]:
            data = files[path][(number - 1) * told["part_size"] : number * told["part_size"]]
            signed = post(f"/uploads/{told['upload_id']}/parts:sign", {"numbers": [number], "sha256": [sha256(data)]})
            assert put(client, signed["parts"][0], data).status_code == 200
        assert complete(client, told["upload_id"]).status_code in (200, 202)
    deadline = time.monotonic() + 60
    while client.get(f"/api/v1/releases/{draft['id']}").json()["missing"]:
        assert time.monotonic() < deadline, list(Job.objects.values())
        for job in Job.objects.filter(kind=actions.VERIFY).exclude(state__in=["done", "failed"]):
            run_job(str(job.pk))  # a job whose worker was killed is taken over once its lease ran out
        time.sleep(0.05)
    sealed = post(f"/releases/{draft['id']}/seal")
    if result is not None:
        result.write_text("done")
    return str(sealed["id"])


def test_a_push_killed_at_any_step_ends_right_when_it_is_done_again(
    store_env: dict[str, str], token: str, tmp_path: Path
) -> None:
    connections.close_all()

    def killed_at(at: int, files: dict[str, bytes]) -> tuple[bool, int]:
        """(whether it was killed, the steps that there were, if it was not)."""
        done = tmp_path / f"done-{at}"

        def work() -> None:
            steps = Steps(at)
            steps.watch()
            push_in_process(token, files)
            done.write_text(str(steps.count))

        one = fork("push", work, tmp_path / "push.log")
        deadline = time.monotonic() + 120
        while not one.is_over:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert one.was_killed or one.exit_code == 0, (tmp_path / "push.log").read_text()[-3000:]
        return one.was_killed, 0 if one.was_killed else int(done.read_text())

    def files_of(seed: int) -> dict[str, bytes]:
        graph = f"graph {seed}".encode()
        return {"artifact/weights.data": some_bytes(2 * PART_BYTES + 11, seed), "artifact/model.py": graph}

    killed_at(0, files_of(1_000_001))  # the first makes rows of jobs that all others find
    _, most = killed_at(0, files_of(1_000_002))
    assert most > 50
    every = range(1, most + 1)
    is_all = os.environ.get("SLUICEGATE_EVERY_STEP") == "1"
    chosen = list(every) if is_all else sorted(random.SystemRandom().sample(every, SAMPLE))
    for at in chosen:
        files = files_of(at)
        was_killed, _ = killed_at(at, files)
        assert was_killed, f"step {at} of {most}"
        release = Release.objects.get(pk=push_in_process(token, files))
        assert release.state == "sealed", f"killed at step {at}"
        is_whole(release, files)
        nothing_unexplained()
    assert Release.objects.filter(state="sealed").count() == len(chosen) + 2
    assert not Upload.objects.filter(state__in=["open", "verifying"]).exists()


# --- real processes


@pytest.fixture
def installation(store_env: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Installation]:
    found = connection.settings_dict
    url = f"postgresql://{found['USER']}:{found['PASSWORD']}@{found['HOST']}:{found['PORT']}/{found['NAME']}"
    keys = {
        "SLUICEGATE_RELEASE_KEY_FILE": settings.RELEASE_KEY_FILE,
        "SLUICEGATE_FORMER_KEYS_FILE": settings.FORMER_KEYS_FILE,
    }
    made = Installation(tmp_path / "state", {"DATABASE_URL": url, **store_env, **keys})
    if "SLUICEGATE_S3_ENDPOINT" in store_env:
        (made.folder / "weed.log").symlink_to(request.getfixturevalue("seaweed").log_file)
    yield made
    made.stop()


def wait_until(what: Callable[[], Any], otherwise: Callable[[], Any], most_s: float = 120) -> None:
    deadline = time.monotonic() + most_s
    while not what():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.02)


def held() -> int:
    """Parts of the large file that the store has."""
    upload = Upload.objects.filter(state=UploadState.OPEN, size_bytes__gt=PART_BYTES, is_begun=True).first()
    return 0 if upload is None else len(received_parts(upload))


def received_parts(upload: Upload) -> dict[int, ReceivedPart]:
    return adapter().received_parts(place_of(upload))


def kill(one: subprocess.Popen[bytes]) -> None:
    one.send_signal(signal.SIGKILL)
    one.wait()


def is_to_be_read(size: int) -> bool:
    """Whether the file has arrived, and a worker is to say whether it is what it should be."""
    return Upload.objects.filter(state=UploadState.VERIFYING, size_bytes=size).exists()


def ends(installation: Installation, push: subprocess.Popen[bytes]) -> int:
    """The push's exit code. Sweeps meanwhile, as the engine does."""
    deadline = time.monotonic() + 240
    while push.poll() is None:
        assert time.monotonic() < deadline, "\n".join(
            installation.log(name)[-2000:] for name in ("push", "worker", "weed")
        )
        dispatch_due()
        time.sleep(0.1)
    return push.wait()


#: So long that a push is still under way when it is seen to be; and as short as one with several parts can be.
SIZE, SHORT = 20 * PART_BYTES + 99, 3 * PART_BYTES + 99


def is_quiet(installation: Installation, push: subprocess.Popen[bytes]) -> bool:
    """Whether nothing that a killed push had sent is on its way any more: whoever got it has closed the connection."""
    store = urlsplit(settings.S3_ENDPOINT if settings.BLOB_STORE.startswith("s3://") else installation.url)
    ports = {installation.port, store.port}
    rows = [line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]]
    ends = [(*(int(end.rpartition(":")[2], 16) for end in row[1:3]), row[3]) for row in rows]
    assert push.poll() is not None
    # A connection that the server ended, as it does with those long idle, is seen the other way round.
    return not any(
        (here in ports and state == CLOSE_WAIT) or (there in ports and state in (FIN_WAIT_1, FIN_WAIT_2))
        for here, there, state in ends
    )


def test_a_killed_command_line_goes_on_and_sends_no_held_part_again(
    installation: Installation, token: str, tmp_path: Path
) -> None:
    files = {"artifact/weights.data": some_bytes(SIZE)}
    folder = write_release(tmp_path / "release", files)
    installation.start()
    push = installation.push(folder, token)
    wait_until(lambda: held() >= 3 or push.poll() is not None, lambda: installation.log("push"))
    kill(push)
    assert Upload.objects.filter(state=UploadState.OPEN).exists(), "it was too fast to be killed"
    wait_until(lambda: is_quiet(installation, push), lambda: installation.log("web"))
    time.sleep(0.5)  # and has said so
    begun = Upload.objects.filter(state=UploadState.OPEN, is_begun=True)
    held_bytes = sum(part.size_bytes for upload in begun for part in received_parts(upload).values())
    before = installation.body_bytes()
    assert ends(installation, installation.push(folder, token)) == 0, installation.log("push")
    assert f"{held_bytes} bytes were there from an earlier run" in installation.log("push")
    if isinstance(adapter(), FolderStore):
        assert installation.body_bytes() - before <= SIZE - held_bytes + 1000  # the small file, where it was not there
    else:
        assert installation.body_bytes() == 0  # nothing of it passed the app, in either run
    is_whole(Release.objects.get(state="sealed"), files)
    assert Release.objects.count() == 1
    nothing_unexplained()


def test_a_web_process_killed_in_mid_push_costs_only_time(
    installation: Installation, token: str, tmp_path: Path
) -> None:
    files = {"artifact/weights.data": some_bytes(SIZE)}
    folder = write_release(tmp_path / "release", files)
    web, _ = installation.start()
    push = installation.push(folder, token)
    wait_until(lambda: held() >= 2 or push.poll() is not None, lambda: installation.log("push"))
    kill(web)
    installation.start_web()
    code = ends(installation, push)
    assert code in (0, 2), installation.log("push")  # away for longer than it waits: said as such, and gone on with
    if code == 2:
        assert "to resume" in installation.log("push")
        assert ends(installation, installation.push(folder, token)) == 0, installation.log("push")
    is_whole(Release.objects.get(state="sealed"), files)
    nothing_unexplained()


def test_a_worker_killed_while_it_reads_is_replaced(installation: Installation, token: str, tmp_path: Path) -> None:
    files = {"artifact/weights.data": some_bytes(SHORT)}
    folder = write_release(tmp_path / "release", files)
    installation.start_web()
    push = installation.push(folder, token)
    wait_until(lambda: is_to_be_read(SHORT), lambda: installation.log("push"))
    with transaction.atomic():  # with the draft's row held here, the worker is caught before it can say what it found
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        list(Release.objects.select_for_update())
        worker = installation.start_worker()
        reading = Job.objects.filter(kind=actions.VERIFY, state="running")
        wait_until(reading.exists, lambda: installation.log("worker"))
        kill(worker)
        caught = list(reading)
    installation.start_worker()
    assert ends(installation, push) == 0, installation.log("push")
    assert caught
    for job in caught:
        job.refresh_from_db()
        assert job.state == "done" and job.attempts >= 2
    is_whole(Release.objects.get(state="sealed"), files)
    nothing_unexplained()


def test_two_pushes_of_one_folder_at_once_both_end_with_the_release(
    installation: Installation, token: str, tmp_path: Path
) -> None:
    files = {"artifact/weights.data": some_bytes(SIZE // 2)}
    folder = write_release(tmp_path / "release", files)
    installation.start()
    pushes = [installation.push(folder, token) for _ in range(2)]
    assert [ends(installation, push) for push in pushes] == [0, 0], installation.log("push")
    is_whole(Release.objects.get(), files)
    nothing_unexplained()
