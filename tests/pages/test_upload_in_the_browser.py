"""Releases uploaded by page: dropped, broken off, resumed, sealed; archives; hostile names; a store that refuses or is away."""

from __future__ import annotations

import io
import os
import re
import signal
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from playwright.sync_api import Browser

from accounts.actions import actor_for, issue_token
from registry.models import Blob, Release, ServedModel, Upload
from sluicegate.stack import child
from tests.pages.upload_browser import Person, database_url
from tests.support.rigs.upload_rig import PART_BYTES, Installation, write_release
from tests.support.worlds.factories import make_environment
from tests.support.worlds.model_files import onnx_file
from tests.support.worlds.registry_samples import ONNX, person, served_model, sha256
from tests.support.worlds.uploading import some_bytes
from validators.models import GateRun

pytestmark = [
    pytest.mark.real("chromium", "postgres", "valkey"),
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(600),
]
BIG = some_bytes(6 * PART_BYTES + 17)


@pytest.fixture(scope="module")
def workers() -> list[Any]:
    """The worker that runs; none once a test has ended it, until the next test begins."""
    return []


@pytest.fixture(scope="module")
def installation(
    django_db_setup: None, workers: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """One for all tests here: its processes live on while the tables are emptied."""
    state = tmp_path_factory.mktemp("state")
    made = Installation(state, {"DATABASE_URL": database_url(), "SLUICEGATE_BLOB_STORE": str(state / "blobs")})
    workers.append(made.start()[1])
    yield made
    made.stop()


@pytest.fixture
def ada(chromium: Browser, installation: Installation, workers: list[Any], settings: Any) -> Iterator[Person]:
    if not workers:
        workers.append(installation.start_worker())
    settings.SECRET_KEY = installation.env["SLUICEGATE_SECRET_KEY"]  # sessions are signed with it
    user = person("dev")
    served_model(actor_for(user))
    found = Person(chromium, installation, user)
    yield found
    found.context.close()
    assert found.broken == []


def folder_of(tmp_path: Path, **files: bytes) -> Path:
    more = {"artifact/weights.data": BIG, "tokenizer/vocab.txt": b"a\nb\n", "artifact/empty.txt": b""}
    return write_release(tmp_path / "release", more | files)


def test_a_dropped_folder_is_sent_and_sealed_as_the_command_line_seals_it(
    ada: Person, installation: Installation, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path)
    (folder / "artifact" / "nothing").mkdir()  # an empty folder is nothing
    (folder / "notes.txt").write_text("beside it")
    ada.open()
    ada.drop(folder)
    assert "Left out: notes.txt" in ada.says("#chosen", "4 files")
    assert "needs a waiver (code)" in ada.says("#checked", "Nothing is wrong")
    ada.send()
    digest = ada.seal()
    assert "a release manager other than you must waive it" in ada.page.locator("#sealed-part").inner_text()
    release = Release.objects.get()
    assert (release.digest, release.state, release.number) == (digest, "sealed", 1)
    assert Blob.objects.filter(sha256=sha256(BIG), state="verified").exists()
    token = issue_token(user=release.author, name="tests", actor=actor_for(release.author))
    push = installation.push(folder, token)
    assert push.wait(120) == 0, installation.log("push")
    assert Release.objects.get().digest == digest  # the same release, not another
    heard = ada.page.locator("#heard").inner_text()
    assert heard.startswith("Everything is sent and verified")


def put_paths(installation: Installation) -> list[str]:
    """The addresses of parts that the web process took, in order; each must be there once."""
    lines = [line.split() for line in installation.count_file.read_text().splitlines()]
    return [path for verb, path, _, status in lines if verb == "PUT" and status == "200"]


def test_an_upload_broken_off_by_a_reload_goes_on_and_sends_nothing_twice(
    ada: Person, installation: Installation, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path)
    ada.open()
    ada.choose(folder)
    ada.says("#checked", "Nothing is wrong")
    let_through: list[Any] = []
    held_back: list[Any] = []

    def some(route: Any) -> None:  # the first parts arrive, the others wait for ever
        (let_through if len(let_through) < 4 else held_back).append(route)
        if route is let_through[-1]:
            route.continue_()

    ada.context.route(re.compile("/upload-parts/"), some)
    before = len(put_paths(installation))
    ada.send()
    deadline = time.monotonic() + 60
    while not held_back or len(put_paths(installation)) - before < 4:
        assert time.monotonic() < deadline, ada.page.locator("main").inner_text()
        ada.page.wait_for_timeout(50)
    ada.page.once("dialog", lambda dialog: dialog.accept())
    ada.page.reload()
    told = ada.says("#resume-words", "is not finished")
    ada.context.unroute(re.compile("/upload-parts/"))
    assert "4 files" in told
    arrived = put_paths(installation)[before:]
    ada.choose(folder)
    ada.says("#checked", "Nothing is wrong")
    ada.send()
    digest = ada.seal()
    assert Release.objects.get().digest == digest and Release.objects.count() == 1
    sent = put_paths(installation)[before:]
    assert len(arrived) == 4 and len(sent) == len(set(sent)) == 10 and set(arrived) < set(sent)
    assert "was there already" in ada.page.locator("#send-words").inner_text()
    ada.page.reload()
    ada.says("#checked", ".")
    assert ada.page.locator("#resume").is_hidden()  # nothing is unfinished any more


@pytest.mark.parametrize("kind", ["stored.zip", "packed.zip", "plain.tar", "packed.tar.gz"])
def test_an_archive_is_the_same_release_as_its_folder(ada: Person, tmp_path: Path, kind: str) -> None:
    long = "artifact/" + "/".join(["a-rather-long-name-of-a-folder"] * 8) + "/notes.md"
    folder = write_release(
        tmp_path / "release", {"tokenizer/vocab.txt": b"a\n" * 9000, long: b"x", "artifact/empty.txt": b""}
    )
    archive = tmp_path / kind
    if kind.endswith(".zip"):
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED if "stored" in kind else zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(folder.rglob("*")):
                packed.write(path, path.relative_to(folder.parent))
    else:
        with tarfile.open(archive, "w:gz" if kind.endswith("gz") else "w") as packed:
            packed.add(folder, arcname="release")
    ada.open()
    ada.page.set_input_files("#choose-archive", archive)
    ada.says("#chosen", "4 files")
    ada.says("#checked", "Nothing is wrong")
    ada.send()
    digest = ada.seal()
    release = Release.objects.get()
    assert release.digest == digest
    assert {f.path: f.blob_id for f in release.files.all()} == {
        path.relative_to(folder).as_posix(): sha256(path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.name != "release.yaml"
    }


def hostile_archives(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    """By what is wrong with it: (the archive, what the page says)."""
    made = {}

    def tar(name: str, says: str, *members: tuple[tarfile.TarInfo, bytes]) -> None:
        with tarfile.open(tmp_path / f"{name}.tar", "w") as packed:
            for info, data in members:
                info.size = len(data)
                packed.addfile(info, io.BytesIO(data))
        made[name] = (tmp_path / f"{name}.tar", says)

    tar("leads-out", "leads out of the folder", (tarfile.TarInfo("artifact/../../x.json"), b"{}"))
    tar("absolute", "is absolute", (tarfile.TarInfo("/etc/x.json"), b"{}"))
    link = tarfile.TarInfo("artifact/x.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    tar("link", "it is a link", (link, b""))
    tar(
        "twice",
        "it is there twice",
        (tarfile.TarInfo("artifact/x.json"), b"{}"),
        (tarfile.TarInfo("artifact/x.json"), b"1"),
    )
    tar("misspelt", "neither artifact/ nor tokenizer/", (tarfile.TarInfo("tokeniser/x.json"), b"{}"),
        (tarfile.TarInfo("artifact/x.json"), b"{}"))  # fmt: skip
    whole = made["twice"][0].read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:1536])
    made["cut"] = (tmp_path / "cut.tar", "cut off or damaged")
    (tmp_path / "no.zip").write_bytes(b"PK\x05\x06 and no more")
    made["no"] = (tmp_path / "no.zip", "cut off or damaged")
    with zipfile.ZipFile(tmp_path / "damaged.zip", "w") as packed:
        packed.writestr("artifact/x.json", b'{"a": 1234}')
    data = (tmp_path / "damaged.zip").read_bytes()
    (tmp_path / "damaged.zip").write_bytes(data.replace(b'{"a": 1234}', b'{"a": 1235}'))
    made["damaged"] = (tmp_path / "damaged.zip", "")
    return made


def test_hostile_archives_and_names_are_told_and_nothing_is_sent(ada: Person, tmp_path: Path) -> None:
    archives = hostile_archives(tmp_path)
    ada.open()
    for name, (archive, says) in archives.items():
        ada.page.set_input_files("#choose-archive", archive)
        where = "#chosen" if says.startswith("cut") else "main"
        if says:
            ada.says(where, says)
        assert ada.page.locator("#send").is_disabled(), name
    folder = write_release(
        tmp_path / "hostile",
        {
            "artifact/a\u202eb.json": b"{}", "artifact/A.json": b"{}", "artifact/a.json": b"{}", "artifact/\u00e9.json": b"{}",
            "artifact/e\u0301.json": b"{}", "artifact/x.npy": b"x", "artifact/<img src=x onerror=alert(1)>.json": b"{}",
        },
    )  # fmt: skip
    ada.choose(folder)
    said = ada.says("#files", "are one file on some file systems")
    assert (
        said.count("are one file on some file systems") == 2
        and "invisible characters" in said
        and "can run code" in said
    )
    assert ada.page.locator("#files img").count() == 0 and ada.page.locator("#send").is_disabled()
    (tmp_path / "empty").mkdir()
    ada.drop(tmp_path / "empty")
    ada.says("#chosen", "Nothing was dropped that holds a file")
    assert not Release.objects.exists() and not Upload.objects.exists()


def test_a_store_that_refuses_or_breaks_is_asked_again(ada: Person, installation: Installation, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    answers = iter([403, 500, 503])
    refused: list[int] = []

    def some(route: Any) -> None:
        status = next(answers, None)
        if status is None:
            route.continue_()
        else:
            refused.append(status)
            route.fulfill(status=status, body="no")

    ada.context.route(re.compile("/upload-parts/"), some)
    ada.open()
    ada.choose(folder)
    ada.says("#checked", "Nothing is wrong")
    ada.send()
    ada.seal()
    assert refused == [403, 500, 503] and Release.objects.get().state == "sealed"


def test_a_lost_connection_is_told_and_waited_for(ada: Person, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    ada.open()
    ada.choose(folder)
    ada.says("#checked", "Nothing is wrong")
    ada.context.route(re.compile("/upload-parts/|/api/v1/uploads"), lambda route: route.abort())
    ada.send()
    assert "Nothing that arrived is lost" in ada.says("#sending-words", "The connection is lost; it tries again in")
    ada.page.click("#pause")
    ada.says("#sending-words", "Paused")
    ada.context.unroute(re.compile("/upload-parts/|/api/v1/uploads"))
    ada.page.click("#pause")
    ada.seal()


def test_a_file_that_changes_meanwhile_stops_the_upload(ada: Person, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    ada.open()
    ada.choose(folder)
    ada.says("#checked", "Nothing is wrong")
    (folder / "artifact" / "weights.data").write_bytes(b"other bytes")
    os.utime(folder / "artifact" / "weights.data", (1, 1))
    ada.send()
    ada.says("#sending-words", "Choose the folder again")
    assert not Release.objects.filter(state="sealed").exists()
    ada.choose(folder)
    ada.says("#checked", "Nothing is wrong")
    ada.send()
    ada.seal()
    assert Blob.objects.filter(sha256=sha256(b"other bytes")).exists()


def test_typing_tells_mistakes_by_line_and_fields_write_the_text(ada: Person, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    ada.open()
    ada.choose(folder)
    ada.says("#checked", "Nothing is wrong")
    text = ada.page.locator("#release-text").input_value()
    ada.page.fill("#release-text", text.replace("max_batch_size: 16", "max_batch_size: sixteen"))
    line = text.splitlines().index("  max_batch_size: 16") + 1
    ada.says("#mistakes", f"release.yaml:{line}:19")
    assert ada.page.locator("#send").is_disabled()
    ada.page.fill("#release-text", text)
    ada.says("#checked", "Nothing is wrong")
    ada.page.fill("#f-notes", "Smaller: 8 bit.")
    ada.page.fill("#f-labels", "precision=int8")
    ada.page.locator("#f-labels").blur()
    ada.says("#checked", "Nothing is wrong")
    ada.send()
    ada.says("#sending-words", "Everything is there and verified")
    ada.page.fill("#f-commit", "4f2a9c1")
    ada.page.locator("#f-commit").blur()
    ada.says("#sending-words", "It was changed since it was sent")  # what is sealed is what is seen
    assert ada.page.locator("#seal").is_hidden()
    ada.send()
    ada.seal()
    spec = Release.objects.get(state="sealed").spec
    assert spec["provenance"] == {"git_commit": "4f2a9c1", "notes": "Smaller: 8 bit.", "labels": {"precision": "int8"}}


def test_a_graph_larger_than_what_is_sent_tells_its_tensors(ada: Person, tmp_path: Path) -> None:
    """Five MiB of weights stand before the graph's inputs; none of them is read."""
    weights = [(f"w{i}", "FP32", [256, 1024]) for i in range(5)]
    graph = onnx_file(inputs=[("x", "FP32", [-1, 7])], outputs=[("score", "FP32", [-1, 2])], weights=weights)
    folder = write_release(tmp_path / "large", {"artifact/model.onnx": graph})
    ServedModel.objects.update(contract={})
    document = yaml.safe_load((folder / "release.yaml").read_text())
    document["runtime"]["backend"] = "sluicegate-onnx"
    (folder / "release.yaml").write_text(yaml.safe_dump(document))
    ada.open()
    ada.choose(folder)
    ada.says("#mistakes", "artifact/model.onnx has no output 'probabilities'")
    ada.page.locator("#take-serving:enabled").click()
    ada.says("#checked", "Nothing is wrong")
    text = yaml.safe_load(ada.page.locator("#release-text").input_value())
    assert text["serving"]["inputs"] == [{"name": "x", "data_type": "FP32", "dims": [7]}]


def test_a_folder_that_an_exporter_wrote_is_taken_as_artifact(ada: Person, tmp_path: Path) -> None:
    for name, data in {"model.onnx": ONNX, "config.json": b"{}", "sub/a.json": b"{}", ".DS_Store": b"x"}.items():
        (tmp_path / "exported" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "exported" / name).write_bytes(data)
    ada.open()
    ada.drop(tmp_path / "exported")
    ada.says("#as-artifact", "Take these 3 files as artifact/")
    assert ada.page.locator("#send").is_disabled()
    ada.page.click("#as-artifact")
    ada.says("#chosen", "3 files")
    shown = ada.page.locator("#files").inner_text()
    assert all(path in shown for path in ("artifact/model.onnx", "artifact/config.json", "artifact/sub/a.json"))
    assert "neither artifact/" not in ada.page.locator("main").inner_text()
    ada.choose(folder_of(tmp_path))
    ada.says("#chosen", "4 files")
    assert ada.page.locator("#as-artifact").is_hidden()


def test_a_release_without_code_begins_its_gates_at_once(ada: Person, workers: list[Any], tmp_path: Path) -> None:
    make_environment("staging", is_routed=False)
    folder = folder_of(tmp_path, **{"artifact/model.onnx": ONNX})
    (folder / "artifact" / "model.py").unlink()
    (folder / "release.yaml").write_text(
        (folder / "release.yaml").read_text().replace("backend: python", "backend: sluicegate-onnx")
    )
    ada.open()
    ada.drop(folder)
    ada.says("#checked", "Nothing is wrong")
    ada.send()
    ada.says("#sending-words", "Everything is there and verified")
    child.stop(workers.pop(), stop_signal=signal.SIGKILL)  # the gates are only begun here
    with psycopg.connect(database_url()) as other:
        other.execute("SELECT 1 FROM serving_environment WHERE slug = 'staging' FOR UPDATE")  # what gates begin under
        ada.seal()
        ada.says("#gates-words", "Another change holds what this one needs")
        assert ada.page.locator("#gates-link").is_hidden()
    ada.page.locator("#gates-link").wait_for()
    run = GateRun.objects.get(release=Release.objects.get())
    assert ada.page.locator("#gates-link").get_attribute("href") == f"/gate-runs/{run.pk}/"
    assert ada.page.locator("#sealed-link").get_attribute("href") == "/models/sentiment/r/1/"
    ada.page.click("#gates-link")
    ada.page.wait_for_url(f"**/gate-runs/{run.pk}/")
