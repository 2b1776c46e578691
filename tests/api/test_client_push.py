"""`Client.push`: the example of docs/ci.md as it stands, and what a program gets that the command line does not show."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.handlers.wsgi import WSGIHandler

import sluicegate.client
from accounts.core.access import Actor
from registry.models import Release
from serving.environments.actions.environments import create_environment
from sluicegate.client import Client, Mistake, StillRunning
from sluicegate.client.folder import LocalFile
from sluicegate.client.uploads import _refused, _Sent, _Upload
from tests.api.cli_world import model, release_folder, run, tokens  # noqa: F401 - fixtures
from validators.models import GateRun

pytestmark = pytest.mark.django_db
DOCS = Path(__file__).resolve().parents[2] / "docs" / "ci.md"


@pytest.fixture
def client(model: None, tokens: dict[str, str]) -> Client:  # noqa: F811
    return Client("http://testserver", tokens["robot"], transport=httpx.WSGITransport(app=WSGIHandler()))


def test_the_example_of_the_docs(
    client: Client,
    tokens: dict[str, str],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    [example] = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    transport = httpx.WSGITransport(app=WSGIHandler())
    monkeypatch.setattr(sluicegate.client, "Client", functools.partial(Client, transport=transport))
    monkeypatch.setenv("SLUICEGATE_TOKEN", tokens["robot"])
    monkeypatch.chdir(tmp_path)
    release_folder(tmp_path / "release")
    exec(compile(example, str(DOCS), "exec"), {})
    sealed = Release.objects.get()
    assert f"sentiment/r1 is sealed: {sealed.digest}" in capsys.readouterr().out
    (tmp_path / "release" / "artifact" / "model.onnx").unlink()
    with pytest.raises(SystemExit, match="the release has no such file"):
        exec(compile(example, str(DOCS), "exec"), {})


def test_it_starts_the_gates_and_waits_for_them(client: Client, tmp_path: Path) -> None:
    create_environment(actor=Actor.system("tests"), slug="staging", is_routed=False)
    with pytest.raises(StillRunning) as caught:
        client.push(release_folder(tmp_path / "one"), has_gates=True, timeout_s=0)
    started = GateRun.objects.get()
    assert str(caught.value.run["id"]) == str(started.pk) and started.release.name == "r1"


def test_it_tells_how_far_it_is(client: Client, tmp_path: Path) -> None:
    from contextlib import contextmanager

    said: list[str] = []

    class Noted:
        def say(self, line: str) -> None:
            said.append(line)

        @contextmanager
        def progress(self, title: str, *, is_bytes: bool = False) -> Any:
            yield lambda done, total, note="": said.append(f"{title} {done} of {total}")

    release = client.push(str(release_folder(tmp_path / "one")), progress=Noted())
    size = sum(
        file.stat().st_size for part in ("artifact", "tokenizer") for file in (tmp_path / "one" / part).iterdir()
    )
    assert f"Hashing {size} of {size}" in said and f"Sending {size} of {size}" in said
    assert release["name"] == "r1" and release["model"] == "sentiment"


def test_a_mistake_sends_nothing(client: Client, tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="is not a folder"):
        client.push(tmp_path / "nowhere")
    folder = release_folder(tmp_path / "one", model="")
    with pytest.raises(Mistake, match="nothing was sent") as caught:
        client.push(folder)
    [error] = caught.value.facts["errors"]
    assert (error["file"], error["field"]) == ("release.yaml", "model")
    assert not Release.objects.exists()


@pytest.mark.parametrize(
    ("status", "blames_the_part"), [(400, True), (403, True), (422, True), (429, False), (503, False)]
)
def test_a_part_that_no_try_brought_is_blamed_only_if_the_answer_says_so(status: int, blames_the_part: bool) -> None:
    file = LocalFile("artifact/model.onnx", Path("model.onnx"), "0" * 64, 1)
    told = _refused(_Sent(_Upload(file, "u", 1, {1}), 1, {}, tries=12), status)
    assert ("sha256 that was announced" in str(told)) is blames_the_part
    assert ("does not take it now" in str(told)) is not blames_the_part
