"""Pushes that fail, are stopped, or run beside another: one release in the end, or nothing left behind."""

# ruff: noqa: F811 - fixtures are named as they are used

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import registry.tasks  # noqa: F401 - registers the handlers of its jobs
from accounts.core.access import Actor
from registry import actions
from registry.models import Release
from sluicegate.cli import exits
from sluicegate.cli.errors import Unreachable
from sluicegate.cli.main import main
from sluicegate.client import Client
from tests.api.cli_world import Run, model, release_folder, run, tokens  # noqa: F401  # fixtures
from tests.support.worlds.model_files import onnx_file

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # whole commands, one request after another


def test_an_upload_that_fails_discards_the_draft(
    run: Run, model: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Client.put_part

    def lying(self: Client, url: str, chunks: Any, **other: Any) -> Any:
        return real(self, url, (bytes(len(chunk)) for chunk in chunks), **other)

    monkeypatch.setattr(Client, "put_part", lying)
    code, told = run("robot", "push", str(release_folder(tmp_path / "one")))
    assert code == exits.REFUSED
    assert "sha256" in json.dumps(told)
    assert not Release.objects.exists()


def test_ctrl_c_discards_the_draft_too(run: Run, model: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "put_part", interrupted)
    assert run("robot", "push", str(release_folder(tmp_path / "one")))[0] == 130
    assert not Release.objects.exists()


def at_request(monkeypatch: pytest.MonkeyPatch, at: int, meanwhile: Callable[[], Any]) -> list[str]:
    """Has `meanwhile` happen before the n-th request of the next push, parts apart; the list of all its requests."""
    real, asked = Client._send, list[str]()
    is_inside = False

    def sending(self: Client, method: str, path: str, **arguments: Any) -> Any:
        nonlocal is_inside
        if not is_inside:
            asked.append(f"{method} {path}")
            if len(asked) == at:
                is_inside = True
                with redirect_stdout(StringIO()):  # what the outer push prints is read
                    meanwhile()
                is_inside = False
        return real(self, method, path, **arguments)

    monkeypatch.setattr(Client, "_send", sending)
    return asked


def pause(monkeypatch: pytest.MonkeyPatch, run_jobs: Callable[[], int]) -> Callable[[float], None]:
    """In place of a push's pauses: jobs run, and every part under way arrives. So no number of tries is too small."""
    real, changed, under_way = Client.put_part, threading.Condition(), 0

    def counted(self: Client, *arguments: Any, **named: Any) -> int:
        nonlocal under_way
        with changed:
            under_way += 1
        try:
            return real(self, *arguments, **named)
        finally:
            with changed:
                under_way -= 1
                changed.notify_all()

    def pausing(_: float) -> None:
        run_jobs()
        with changed:
            assert changed.wait_for(lambda: not under_way, timeout=60)

    monkeypatch.setattr(Client, "put_part", counted)
    return pausing


def folder_in_parts(folder: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, run_jobs: Callable[[], int]) -> Path:
    """A release folder with a file of three parts, which a worker must read; it reads while the command waits."""
    settings.UPLOAD_PART_BYTES = 1000
    monkeypatch.setattr("sluicegate.client.uploads.time.sleep", pause(monkeypatch, run_jobs))
    made = release_folder(folder, graph=onnx_file(folder.name))
    (made / "artifact" / "weights.data").write_bytes(folder.name.encode() * 300)
    return made


#: More requests than a push of that folder makes.
MOST_REQUESTS = 16
#: The first request that makes the draft: before it the folder is checked, by two.
DRAFTED = 3


@pytest.mark.parametrize("at", range(1, MOST_REQUESTS))
def test_two_pushes_at_once_end_with_the_same_release(
    run: Run, model: None, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, run_jobs: Any, at: int
) -> None:
    folder = folder_in_parts(tmp_path / "shared", settings, monkeypatch, run_jobs)
    codes = list[int]()
    asked = at_request(monkeypatch, at, lambda: codes.append(main(["push", str(folder)])))
    code = run("robot", "push", str(folder))[0]
    assert (code, codes) == (exits.OK, [exits.OK] if len(asked) >= at else []), asked
    assert [(one.name, one.state) for one in Release.objects.all()] == [("r1", "sealed")]


@pytest.mark.parametrize("at", range(DRAFTED + 1, MOST_REQUESTS - 3))
def test_a_push_that_ends_leaves_the_draft_to_another_that_goes_on_with_it(
    run: Run, model: None, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, run_jobs: Any, at: int
) -> None:
    folder = folder_in_parts(tmp_path / "shared", settings, monkeypatch, run_jobs)

    def another_begins_and_this_one_is_stopped() -> None:
        def lost(*_: Any, **__: Any) -> Any:
            raise Unreachable("http://testserver", "it was cut off")

        with monkeypatch.context() as away:
            away.setattr("sluicegate.client.push.uploads.send_files", lost)
            assert main(["push", str(folder)]) == exits.INFRASTRUCTURE  # it has the draft, and is not over
        raise KeyboardInterrupt

    asked = at_request(monkeypatch, at, another_begins_and_this_one_is_stopped)
    assert run("robot", "push", str(folder))[0] == 130
    assert len(asked) >= at
    [draft] = Release.objects.all()
    monkeypatch.setattr("sluicegate.client.uploads.time.sleep", pause(monkeypatch, run_jobs))
    assert run("robot", "push", str(folder))[1]["id"] == str(draft.pk)


@pytest.mark.parametrize("at", range(DRAFTED + 1, MOST_REQUESTS - 3))
def test_a_push_whose_draft_is_discarded_begins_anew(
    run: Run, model: None, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, run_jobs: Any, at: int
) -> None:
    folder = folder_in_parts(tmp_path / "shared", settings, monkeypatch, run_jobs)

    def discarded() -> None:
        [draft] = Release.objects.all()
        actions.discard_draft(actor=Actor.system("tests"), release=draft)

    at_request(monkeypatch, at, discarded)
    code, sealed = run("robot", "push", str(folder))
    assert (code, sealed["name"]) == (exits.OK, "r1")
    assert Release.objects.count() == 1
